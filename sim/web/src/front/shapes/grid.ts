// TLSF: a row of size classes for each power of two, a bit for each row and each class, and a list for each class.

import { grouped } from '../../draw.ts';
import { BAR, bar, heightOf } from '../memory.ts';
import { arrow, box, FONT, frameOf, type Look, text } from './ink.ts';

const ROW = 26, CELL = 22, HEAD = 22, GAP = 34;

export function grid(look: Look, width: number): readonly [number, Node[]] {
  const { steps, now, shape, scene, fresh } = frameOf<'grid'>(look);
  const rows = shape.rows.length, narrow = width < 700;
  const label = 46, bit = 24, first = label + bit + 22, wide = narrow ? 38 : 62, count = shape.rows[0]!.cells.length, lists = first + count * wide + 20;
  const y = (row: number) => HEAD + (rows - 1 - row) * ROW, foot = HEAD + rows * ROW + GAP;
  const total = scene.parts.reduce((sum, part) => sum + part.bytes, 0), x = (at: number) => at / total * width;
  const nodes: Node[] = [text(label - 6, 14, 'size', 'size'), text(label, 14, narrow ? 'row' : 'rows', 'note start'), text(first, 14, 'a bit for each list', 'note start'),
    text(lists, 14, 'free blocks', 'note start')], lines: Node[] = [];
  const scanned = (row: number | null, cell: number) => now?.is === 'word' && now.row === row && cell >= now.from;
  const at = now && 'at' in now && now.is !== 'split' ? now.at : null;

  /** The bits that the scans found, and the class at which the search began. */
  const trail = (row: number | null, cell: number) => steps.some(({ on }) => on.is === 'class' && on.row === row && on.cell === cell || on.is === 'word' && on.row === row && on.found === cell);
  shape.rows.forEach((row, fl) => {
    const scan = scanned(null, fl);
    nodes.push(text(label - 6, y(fl) + 16, grouped(row.from), 'size'));
    nodes.push(box({ x: label, y: y(fl), w: bit, h: CELL }, `bit${row.bit ? ' set' : ''}${scan ? ' scan' : ''}${scan && now?.is === 'word' && now.found === fl ? ' lit' : trail(null, fl) ? ' trail' : ''}`, row.bit ? '1' : '0'));
    if (row.bit) lines.push(arrow([[label + bit, y(fl) + CELL / 2], [first - 3, y(fl) + CELL / 2]], now?.is === 'word' && now.row === fl && now.from === 0 ? 'lit' : 'quiet'));
    let end = lists;
    row.cells.forEach((cell, sl) => {
      const scan = scanned(fl, sl), found = scan && now?.is === 'word' && now.found === sl;
      const begins = now?.is === 'class' && now.row === fl && now.cell === sl, owns = at !== null && cell.list.some((block) => block.at === at);
      nodes.push(box({ x: first + sl * wide, y: y(fl), w: wide - 3, h: CELL }, `bit${cell.bit ? ' set' : ''}${scan ? ' scan' : ''}${begins || found || owns ? ' lit' : trail(fl, sl) ? ' trail' : ''}`,
        narrow ? (cell.bit ? '1' : '0') : `${cell.bit ? '1' : '0'}  ${grouped(cell.from)}`, `list of ${grouped(cell.from)}: ${cell.list.length ? `${cell.list.length} free` : 'empty'}`));
      let from = first + sl * wide + wide - 3;
      for (const block of cell.list) {
        const said = narrow ? grouped(block.bytes) : `${grouped(block.bytes)} at ${grouped(block.at)}`, w = FONT * said.length + 10, lit = block.at === at;
        if (end + w > width) break;
        // An arrow from the cell to its first block passes the cells to its right.
        lines.push(arrow([[from, y(fl) + CELL / 2], [end - 1, y(fl) + CELL / 2]], lit ? 'lit' : 'quiet'));
        nodes.push(box({ x: end, y: y(fl), w, h: CELL }, `free${lit ? ' lit' : ''}`, said, `${grouped(block.bytes)} bytes at ${grouped(block.at)}`));
        if (lit) lines.push(arrow([[end + w / 2, y(fl) + CELL], [end + w / 2, foot - GAP + 6], [x(block.at + block.bytes / 2), foot - GAP + 14], [x(block.at + block.bytes / 2), foot - 1]], 'lit'));
        from = end + w;
        end += w + 16;
      }
    });
    if (now?.is === 'word' && now.row === fl && now.found === null) nodes.push(text(first + count * wide + 4, y(fl) + 16, '✗', 'now start'));
  });
  if (now?.is === 'word' && now.row === null && now.found === null) nodes.push(text(label + bit + 4, y(rows - 1) + 16, '✗', 'now start'));
  const memory = bar(scene, { x: 0, y: foot, width, rows: 1 }, { fresh, pick: look.pick });
  if (at !== null && now && 'bytes' in now) memory.push(box({ x: x(at), y: foot, w: Math.max(now.bytes / total * width, 3), h: BAR }, 'outline'));
  return [foot + heightOf(1), [...lines, ...nodes, ...memory]];
}
