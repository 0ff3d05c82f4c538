// The text twin of the pictures: all caches, what CPUs hold of the chosen one, and the run, as tables.

import { grouped } from '../draw.ts';
import { SLOW, SUMS } from '../engine.ts';
import { cacheTables, pagesTable, table } from '../twin.ts';
import type { Run } from './run.ts';
import type { View } from '../views.ts';

export function drawTwin(root: HTMLElement, { about, samples }: Run, view: View, chosen: number): void {
  root.replaceChildren(
    ...cacheTables(view, chosen, about.caches[chosen]!),
    pagesTable(view.pages),
    table('The run', ['operation', 'in use', 'cached', 'free in slabs', 'slabs', ...SLOW.map((path) => `by ${path} so far`)],
      samples.filter((_, i) => i % 48 === 0 || i === samples.length - 1).map(({ at, values }) => [at, ...values.slice(0, SUMS)].map(grouped))),
  );
}
