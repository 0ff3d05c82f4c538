// A handle table: each handle names a slot and a generation, and a slot has a generation of its own.

import { arrow, box, frameOf, type Look, text } from './ink.ts';

const CHIP = 56, HIGH = 40, BETWEEN = 76, SHOWN = 16;

export function slots(look: Look, width: number): readonly [number, Node[]] {
  const { now, shape } = frameOf<'slots'>(look);
  const handles = shape.handles.slice(-Math.min(SHOWN, Math.floor(width / CHIP))), lit = now?.is === 'handle' ? now.name : null;
  const wide = Math.min(width / shape.slots.length, 110), step = Math.min(width / Math.max(handles.length, 1), 84), y = 24 + HIGH + BETWEEN;
  // A handle that the command names is not known to be stale before the last step has compared it.
  const all = look.scene.structure!.steps, compared = look.done < all.length ? all.flatMap(({ on }) => (on.is === 'handle' ? [on.name] : [])) : [];
  const nodes: Node[] = [text(0, 14, width < 700 ? 'handles: slot · generation' : 'handles: slot and generation (g)', 'note start')], lines: Node[] = [];
  for (const [n, slot] of shape.slots.entries()) {
    const x = n * wide, kind = slot.retired ? 'retired' : slot.object ? 'used' : slot.generation ? 'free' : 'untouched';
    const own = box({ x: x + 1, y, w: wide - 3, h: HIGH }, kind, slot.retired ? '✗' : slot.object ?? '', `slot ${n}: ${slot.retired ? 'retired' : slot.object ? `in use by ${slot.object}` : slot.generation ? 'free' : 'never used'}`);
    if (slot.object && look.pick) {
      own.classList.add('pick', 'part');
      own.addEventListener('click', () => look.pick!(slot.object!));
    }
    const said = slot.generation === null ? '' : slot.retired ? (wide > 48 ? 'retired' : '–') : wide > 106 ? `generation ${slot.generation} of ${shape.last}` : wide > 80 ? `generation ${slot.generation}` : `g ${slot.generation}`;
    nodes.push(own, text(x + wide / 2, y - 6, wide > 38 ? `slot ${n}` : n, 'note mid'), text(x + wide / 2, y + HIGH + 15, said, 'mid'));
  }
  for (const [i, handle] of handles.entries()) {
    const x = i * step, open = compared.includes(handle.name), stale = !open && handle.finds === null, wrong = !open && handle.finds !== null && handle.finds !== handle.name, own = lit === handle.name;
    nodes.push(box({ x: x + 1, y: 24, w: step - 5, h: HIGH }, `${stale ? 'ghost' : wrong ? 'bit wrong' : 'bit set'}${own ? ' lit' : ''}`, '',
      `handle ${handle.name}: slot ${handle.slot}, generation ${handle.generation}, ${open ? 'not compared yet' : stale ? 'stale' : `finds ${handle.finds}`}`),
    text(x + step / 2 - 2, 40, `${handle.name}${stale ? ' ✗' : wrong ? ' → ' + handle.finds : ''}`, 'mid'), text(x + step / 2 - 2, 57, `${step > 76 ? 'slot ' : ''}${handle.slot} · g${handle.generation}`, 'note mid'));
    const to: [number, number] = [(handle.slot + 0.5) * wide, y - 20];
    // A stale handle's arrow does not reach its slot.
    const from: [number, number] = [x + step / 2 - 2, 24 + HIGH], end: [number, number] = stale ? [from[0] + (to[0] - from[0]) * 0.8, from[1] + (to[1] - from[1]) * 0.8] : to;
    lines.push(arrow([from, end], `${stale ? 'dashed' : ''}${own || wrong ? ' lit' : ''}`));
    if (own && stale) nodes.push(text(end[0] + 26, end[1] - 12, `g${handle.generation} ≠ g${shape.slots[handle.slot]?.generation ?? '?'}`, 'now'));
  }
  if (!handles.length) nodes.push(text(0, 48, 'no handle yet', 'note start'));
  return [y + HIGH + 24, [...lines, ...nodes]];
}
