// The picture of a demo: its allocator's data structure, or else its memory alone.

import { drawing } from '../../draw.ts';
import type { Shape } from '../../scenes.ts';
import { memory } from '../memory.ts';
import { chain } from './chain.ts';
import { grid } from './grid.ts';
import { head } from './head.ts';
import type { Look } from './ink.ts';
import { lines } from './lines.ts';
import { list } from './list.ts';
import { packed } from './packed.ts';
import { slots } from './slots.ts';
import { tree } from './tree.ts';

const DRAWS: Record<Shape['is'], (look: Look, width: number) => readonly [height: number, Node[]]> = { tree, grid, list, chain, head, slots, packed, lines };

export function picture(look: Look): SVGSVGElement {
  const { structure } = look.scene;
  if (!structure) return memory(look.scene, 2, { pick: look.pick });
  return drawing({ class: `memory shape ${structure.shape.is}`, 'aria-label': structure.text.join('; ') }, (width) => DRAWS[structure.shape.is](look, width));
}
