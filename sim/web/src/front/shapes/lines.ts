// Arrays in cache lines: the lines that a walk loads, in each memory layout.

import { box, frameOf, type Look, text } from './ink.ts';

const HIGH = 17, HEAD = 40, GAP = 18;

export function lines(look: Look, width: number): readonly [number, Node[]] {
  const { steps, now, shape, scene } = frameOf<'lines'>(look);
  const across = width < 640 ? 1 : shape.arrays.length, numbers = shape.line / 4;
  const walk = scene.structure!.steps[0]?.on, array = walk?.is === 'line' ? walk.array : null, done = new Set(steps.flatMap(({ on }) => (on.is === 'line' ? [on.line] : [])));
  const panel = (width + GAP) / across, wide = (panel - GAP) / numbers, nodes: Node[] = [];
  const rows = Math.max(...shape.arrays.map(({ loaded }) => loaded.length)), high = HEAD + rows * (HIGH + 3) + 12;
  shape.arrays.forEach(({ layout, fields, used, loaded }, i) => {
    const left = i % across * panel, top = Math.floor(i / across) * high, count = loaded.filter(Boolean).length;
    const seen = i === array ? done.size : count, all = seen === count;
    const share = Math.floor(100 * used.filter(Boolean).length * 4 / (count * shape.line));
    nodes.push(text(left, top + 14, `${layout}${i === array ? ', this walk' : ''}`, `start strong${i === array ? ' now' : ''}`), text(left, top + 31, all ? `loads ${count} of ${loaded.length} lines, uses ${share} % of them` : `${seen} of ${loaded.length} lines loaded so far`, 'start'));
    loaded.forEach((line, row) => {
      const y = top + HEAD + row * (HIGH + 3), shown = line && (i !== array || done.has(row));
      for (let n = 0; n < numbers; n++) {
        const at = row * numbers + n, name = shape.names[fields[at]!]!;
        nodes.push(box({ x: left + n * wide, y, w: wide - 1, h: HIGH }, !shown ? 'free' : used[at] ? 'used' : 'loaded', wide > 11 ? name[0]! : '', `${name}, ${!shown ? 'not loaded' : used[at] ? 'loaded and used' : 'loaded'}`));
      }
      if (i === array && now?.is === 'line' && now.line === row) nodes.push(box({ x: left - 1, y: y - 1, w: wide * numbers + 1, h: HIGH + 2 }, 'outline'));
    });
  });
  return [Math.ceil(shape.arrays.length / across) * high, nodes];
}
