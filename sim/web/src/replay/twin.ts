// The text twin of the pictures: all caches, what CPUs hold of the chosen one, and the run, as tables.

import { grouped, made } from '../draw.ts';
import { said } from '../levels.ts';
import type { Run } from './run.ts';
import type { View } from '../views.ts';

const COLUMNS = ['size', 'per_slab', 'served', 'used', 'in_magazines', 'in_depot', 'free_in_slabs', 'full', 'partial', 'empty', 'depot_exchanges', 'slabs_made'] as const;

export function drawTwin(root: HTMLElement, run: Run, view: View, chosen: number): void {
  const { about, samples } = run;
  const shown = view.shown.find(({ cache }) => cache === chosen);
  const { pages } = view;
  root.replaceChildren(
    table('All caches', ['cache', ...COLUMNS.map((column) => column.replaceAll('_', ' '))],
      view.caches.map((cache) => [cache.name, ...COLUMNS.map((column) => grouped(cache[column]))])),
    table(`Who holds free objects of ${about.caches[chosen]}`, ['holder', 'objects'], [
      ...(shown?.cpus ?? []).map((own, cpu) => [`CPU ${cpu}`, said(own) || 'nothing']),
      ...(shown?.shared ?? []).map((own, node) => [`shared on node ${node}`, said(own) || 'nothing']),
    ]),
    table('Pages', ['what', 'pages'], (['managed', 'slab', 'large', 'blocks', 'per_cpu', 'free', 'uncommitted'] as const)
      .map((what) => [what.replaceAll('_', ' '), grouped(pages[what])])),
    table('The run', ['operation', 'in use', 'cached', 'free in slabs', 'slabs'],
      samples.filter((_, i) => i % 48 === 0 || i === samples.length - 1).map(({ at, values }) => [at, ...values.slice(0, 4)].map(grouped))),
  );
}

function table(caption: string, head: string[], rows: string[][]): HTMLElement {
  return made('div', { className: 'scroll' }, made('table', {},
    made('caption', {}, caption),
    made('thead', {}, made('tr', {}, ...head.map((text) => made('th', { scope: 'col' }, text)))),
    made('tbody', {}, ...rows.map(([name, ...cells]) =>
      made('tr', {}, made('th', { scope: 'row' }, name!), ...cells.map((text) => made('td', {}, text)))))));
}
