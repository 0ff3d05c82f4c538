// Text twins of pictures: a moment as tables.

import { grouped, made, sum } from './draw.ts';
import { said } from './levels.ts';
import type { Pages, View } from './views.ts';

const COLUMNS = ['size', 'per_slab', 'served', 'used', 'in_magazines', 'in_depot', 'free_in_slabs', 'full', 'partial', 'empty', 'depot_exchanges', 'slabs_made'] as const;

export function table(caption: string, head: string[], rows: string[][]): HTMLElement {
  return made('div', { className: 'scroll' }, made('table', {},
    made('caption', {}, caption),
    made('thead', {}, made('tr', {}, ...head.map((text) => made('th', { scope: 'col' }, text)))),
    made('tbody', {}, ...rows.map(([name, ...cells]) =>
      made('tr', {}, made('th', { scope: 'row' }, name!), ...cells.map((text) => made('td', {}, text)))))));
}

/** All caches, and who holds free objects of one. */
export function cacheTables(view: View, chosen: number, name: string): HTMLElement[] {
  const shown = view.shown.find(({ cache }) => cache === chosen);
  return [
    table('All caches', ['cache', ...COLUMNS.map((column) => column.replaceAll('_', ' '))],
      view.caches.map((cache) => [cache.name, ...COLUMNS.map((column) => grouped(cache[column]))])),
    table(`Who holds free objects of ${name}`, ['holder', 'objects'], [
      ...(shown?.cpus ?? []).map((own, cpu) => [`CPU ${cpu}`, said(own) || 'nothing']),
      ...(shown?.shared ?? []).map((own, node) => [`shared on node ${node}`, said(own) || 'nothing']),
    ]),
  ];
}

/** Pages by what they are in. */
const PAGES = [
  ['managed', 'all'], ['slab', 'in slabs'], ['large', 'in large objects'], ['blocks', 'in other blocks'], ['per_cpu', 'kept by CPUs'], ['free', 'free, committed'], ['uncommitted', 'free, not committed'],
] as const;

export const pagesTable = (pages: Pages): HTMLElement => table('Pages', ['what', 'pages'],
  PAGES.map(([what, said]) => [said, grouped(pages[what])]));

/** Free blocks in zones, with CPUs, and shared by them. */
export const ordersTable = ({ orders, uncommitted_orders: uncommitted, cpus, depot }: Pages): HTMLElement => table('Free blocks by order', ['where', ...orders.map((_, order) => String(order))],
  [['zones, committed', ...orders.map((types, order) => grouped(sum(types) - uncommitted[order]!))], ['zones, not committed', ...uncommitted.map(grouped)], ...cpus.map((own, cpu) => [`CPU ${cpu}`, ...own.map(grouped)]), ['shared', ...depot.map(grouped)]]);
