// What the pictures of data structures share: a frame of a command, boxes, labels and arrows.

import { svg } from '../../draw.ts';
import type { On, Scene, Shape, Step } from '../../scenes.ts';
import { midway } from './midway.ts';

/** A command, and how many of its steps are shown. */
export interface Look {
  before: Scene;
  scene: Scene;
  done: number;
  pick?: ((block: string) => void) | undefined;
}

export type Of<Is extends Shape['is']> = Extract<Shape, { is: Is }>;

/** What is shown: the shown steps, the last of them, and the state after it. */
export interface Frame<Is extends Shape['is']> {
  steps: readonly Step[];
  now: On | undefined;
  shape: Of<Is>;
  scene: Scene;
  fresh: readonly string[];
}

export const namesIn = (scene: Scene): string[] => [...new Set(scene.parts.flatMap((part) => (part.is === 'used' ? [part.block] : [])))];

export function frameOf<Is extends Shape['is']>({ before, scene, done }: Look): Frame<Is> {
  const steps = scene.structure!.steps.slice(0, done), own = midway(before, scene, done), was = namesIn(before);
  return { steps, now: steps.at(-1)?.on, scene: own, shape: own.structure!.shape as Of<Is>, fresh: namesIn(own).filter((name) => !was.includes(name)) };
}

export const FONT = 7;

export const text = (x: number, y: number, said: string | number, kind = ''): SVGTextElement => svg('text', { x, y, class: kind }, String(said));

export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

/** A box with a label, which is left out if it does not fit. */
export function box({ x, y, w, h }: Box, kind: string, label = '', title = ''): SVGGElement {
  const own = svg('g', { class: `box ${kind}` }, svg('rect', { x: x + 0.5, y: y + 0.5, width: Math.max(w - 1, 1), height: h - 1, rx: 3 }));
  if (title) own.prepend(svg('title', {}, title));
  if (label && FONT * label.length + 2 <= w) own.append(text(x + w / 2, y + h / 2 + 4, label));
  return own;
}

/** A line along points, with an arrowhead at its end. */
export function arrow(points: readonly (readonly [x: number, y: number])[], kind = '', curve = false): SVGGElement {
  const [[x0, y0], [x1, y1]] = [points.at(-2)!, points.at(-1)!];
  const turn = Math.atan2(y1 - y0, x1 - x0), at = (angle: number, length: number) => `${x1 - length * Math.cos(turn + angle)} ${y1 - length * Math.sin(turn + angle)}`;
  const d = curve && points.length === 3 ? `M${points[0]!.join(' ')}Q${points[1]!.join(' ')} ${points[2]!.join(' ')}` : `M${points.map((point) => point.join(' ')).join('L')}`;
  return svg('g', { class: `arrow ${kind}` }, svg('path', { d }), svg('path', { class: 'point', d: `M${x1} ${y1}L${at(0.45, 8)}L${at(-0.45, 8)}z` }));
}

/** The bits of an address, with one of them marked. */
export function bits(x: number, y: number, value: number, count: number, marked: number): Node[] {
  return Array.from({ length: count }, (_, i) => {
    const bit = 2 ** (count - 1 - i);
    return box({ x: x + i * 15, y, w: 15, h: 20 }, `bit${bit === marked ? ' lit' : ''}`, value & bit ? '1' : '0');
  });
}
