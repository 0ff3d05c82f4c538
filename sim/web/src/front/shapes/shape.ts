// The picture of a demo: its allocator's data structure, or else its memory alone.

import { drawing, svg } from '../../draw.ts';
import type { Shape } from '../../scenes.ts';
import { memory } from '../memory.ts';
import { chain } from './chain.ts';
import { chunks } from './chunks.ts';
import { grid } from './grid.ts';
import { head } from './head.ts';
import type { Look } from './ink.ts';
import { lanes } from './lanes.ts';
import { lines } from './lines.ts';
import { list } from './list.ts';
import { packed } from './packed.ts';
import { slots } from './slots.ts';
import { tree } from './tree.ts';

const DRAWS: Record<Shape['is'], (look: Look, width: number) => readonly [height: number, Node[]]> = { tree, grid, list, chain, chunks, head, slots, packed, lines, lanes };

/** The width of a preview, and its least height. */
const WIDE = 480, HIGH = 280;

/** A small picture of the same. */
export function preview(look: Look): SVGSVGElement {
  const { structure } = look.scene;
  if (!structure) return memory(look.scene, 2);
  const [height, nodes] = DRAWS[structure.shape.is](look, WIDE), high = Math.max(height, HIGH), wide = high * WIDE / HIGH;
  return svg('svg', { class: `memory shape ${structure.shape.is}`, viewBox: `${(WIDE - wide) / 2} ${(height - high) / 2} ${wide} ${high}` }, ...nodes);
}

export function picture(look: Look): SVGSVGElement {
  const { structure } = look.scene;
  if (!structure) return memory(look.scene, 2, { pick: look.pick });
  return drawing({ class: `memory shape ${structure.shape.is}`, 'aria-label': structure.text.join('; ') }, (width) => DRAWS[structure.shape.is](look, width));
}
