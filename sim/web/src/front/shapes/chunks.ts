// A pool that grows by chunks: the chunks from front to back, and the list that runs through the free slots of each.

import { grouped } from '../../draw.ts';
import { arrow, box, frameOf, type Look, text } from './ink.ts';

const HIGH = 36, ABOVE = 42, NAME = 76, HEAD = 42, GAP = 22, WIDEST = 150;

export function chunks(look: Look, width: number): readonly [number, Node[]] {
  const { now, shape: { slot, bytes, chunks: all }, scene } = frameOf<'chunks'>(look), count = Math.floor(bytes / slot), header = bytes % slot;
  const left = NAME + HEAD + GAP, wide = Math.min((width - left) / count, WIDEST), lit = now && 'at' in now ? now.at : null;
  const nodes: Node[] = [], lines: Node[] = [];
  all.forEach(({ at, list }, i) => {
    const y = 20 + ABOVE + i * (HIGH + ABOVE), place = i ? i === all.length - 1 ? 'back' : '' : all.length > 1 ? 'front' : 'front, back';
    nodes.push(text(0, y + 15, `chunk ${at / bytes}`, 'start strong'), text(0, y + 31, [place, list.length ? '' : 'full'].filter(Boolean).join(', '), 'note'),
      box({ x: NAME, y, w: HEAD, h: HIGH }, `bit set${lit === at ? ' lit' : ''}`, 'head', `the header of the chunk, ${header} bytes`));
    // The chunks are linked both ways.
    if (i) lines.push(arrow([[NAME + 14, y - ABOVE], [NAME + 14, y - 1]], 'quiet'), arrow([[NAME + 28, y], [NAME + 28, y - ABOVE + 1]], 'quiet'));
    for (let n = 0; n < count; n++) {
      const begin = at + header + n * slot, link = list.indexOf(n), used = link < 0 ? scene.parts.find((part) => part.is === 'used' && part.at === begin) : null, name = used && 'block' in used ? used.block : '';
      const own = box({ x: left + n * wide + 1, y, w: wide - 3, h: HIGH }, `${link < 0 ? 'used' : 'free'}${lit === begin ? ' lit' : ''}`, link < 0 ? name : `→ ${list[link + 1] ?? 'null'}`, `slot ${n} of chunk ${at / bytes}: ${link < 0 ? `in use by ${name}` : 'free'}`);
      if (name && look.pick) {
        own.classList.add('pick', 'part');
        own.addEventListener('click', () => look.pick!(name));
      }
      nodes.push(own, text(left + (n + 0.5) * wide, y + HIGH + 13, n, 'note mid'));
    }
    let from: readonly [number, number] = [NAME + HEAD - 6, y];
    for (const [hop, n] of list.entries()) {
      const to: [number, number] = [left + (n + 0.5) * wide - 6, y - 1], high = Math.min(24, 12 + Math.abs(to[0] - from[0]) / 12);
      lines.push(arrow([from, [(from[0] + to[0]) / 2, y - high], to], lit === at + header + n * slot && now?.is === 'put' && !hop ? 'lit' : '', true));
      from = [to[0] + 12, y - 1];
    }
  });
  if (!all.length) nodes.push(text(0, 20 + ABOVE, 'no chunk is mapped', 'note'));
  return [Math.max(all.length, 2) * (HIGH + ABOVE) + 40, [...nodes, ...lines, text(0, 12, `chunks of ${grouped(bytes)} bytes: a head, and ${count} slots of ${grouped(slot)}`, 'note')]];
}
