// A pool: slots of one size, and a list that runs through the free ones.

import { grouped } from '../../draw.ts';
import { arrow, box, frameOf, type Look, text } from './ink.ts';

const SLOT = 54, HIGH = 40, ABOVE = 44, LEFT = 56;

export function chain(look: Look, width: number): readonly [number, Node[]] {
  const { now, shape, scene } = frameOf<'chain'>(look);
  const { slot, list, opened, end } = shape, total = scene.parts.reduce((sum, part) => sum + part.bytes, 0), count = Math.floor(total / slot);
  const rows = Math.ceil(count / Math.floor((width - LEFT) / SLOT)), across = Math.ceil(count / rows), wide = Math.min((width - LEFT) / across, 90);
  const place = (n: number) => ({ x: LEFT + n % across * wide, y: ABOVE + Math.floor(n / across) * (HIGH + ABOVE) });
  const nodes: Node[] = [], lines: Node[] = [];
  const lit = now && 'at' in now ? now.at / slot : null;
  for (let n = 0; n < count; n++) {
    const { x, y } = place(n), at = list.indexOf(n), link = at < 0 ? null : list[at + 1] ?? end;
    // A slot on the list is free, even if a later step takes it.
    const used = at < 0 ? scene.parts.find((part) => part.is === 'used' && part.at === n * slot) : undefined, waste = scene.parts.find((part) => part.is === 'rounding' && part.at >= n * slot && part.at < (n + 1) * slot);
    const name = used && 'block' in used ? used.block : '';
    const kind = name ? 'used' : at >= 0 ? 'free' : n < opened ? 'free' : 'untouched';
    const own = box({ x: x + 1, y, w: wide - 3, h: HIGH }, `${kind}${lit === n ? ' lit' : ''}`, name || (at < 0 ? '' : link === null ? 'null' : `→ ${link}`),
      `slot ${n}: ${name ? `in use by ${name}` : at < 0 ? 'never used' : `free, its link is ${link ?? 'null'}`}`);
    if (name && look.pick) {
      own.classList.add('pick', 'part');
      own.addEventListener('click', () => look.pick!(name));
    }
    nodes.push(own, text(x + wide / 2, y + HIGH + 14, n, 'note mid'));
    if (waste) nodes.push(box({ x: x + 1 + (wide - 3) * (1 - waste.bytes / slot), y, w: (wide - 3) * waste.bytes / slot, h: HIGH }, 'rounding', '', `${waste.bytes} bytes of rounding`));
  }
  nodes.push(box({ x: 0, y: ABOVE + 8, w: 42, h: 24 }, 'bit set', 'head'));
  let from: readonly [number, number] = [36, ABOVE + 8];
  const hops = end === null ? list : [...list, end];
  hops.forEach((n, i) => {
    if (n >= count) return;
    const { x, y } = place(n), to: [number, number] = [x + wide / 2 - 6, y - 1];
    const kind = lit !== null && (n === lit || list[i - 1] === lit) && now?.is === 'put' ? 'lit' : n >= opened ? 'dashed' : '';
    const high = Math.min(40, 14 + Math.abs(to[0] - from[0]) / 6);
    lines.push(arrow([from, [(from[0] + to[0]) / 2, Math.min(from[1], to[1]) - high], to], kind, true));
    from = [x + wide / 2 + 6, y - 1];
  });
  if (!hops.length) nodes.push(text(0, ABOVE + 48, 'null', 'note start'));
  return [rows * (HIGH + ABOVE) + 20, [...nodes, ...lines, text(0, 12, `${count} slots of ${grouped(slot)} bytes; a list of the free ones`, 'note start')]];
}
