// The pages below: free blocks by order, per-CPU pages, and a map of memory.

import { $, colours, grouped, made, sheet, sum } from '../draw.ts';
import type { Pages } from '../views.ts';

const MOST_CPUS = 16;
const SQUARE = 32; // a block of order 10 has 32 by 32 pages

/** Pages in Morton order, so that a block and its buddy are a square or two side by side. */
const MORTON = Array.from({ length: SQUARE * SQUARE }, (_, page): [x: number, y: number] => {
  let x = 0, y = 0;
  for (let bit = 0; bit < 5; bit++) {
    x |= (page >> (2 * bit) & 1) << bit;
    y |= (page >> (2 * bit + 1) & 1) << bit;
  }
  return [x, y];
});

const mib = (pages: number): string => `${(pages / 256).toFixed(pages < 25600 ? 1 : 0)} MiB`;

export class PagesBelow {
  readonly root: HTMLElement;

  constructor() {
    const template = $<HTMLTemplateElement>('pages').content.cloneNode(true) as DocumentFragment;
    this.root = template.firstElementChild as HTMLElement;
  }

  draw(pages: Pages, map: Uint8Array): void {
    const part = <E extends HTMLElement>(name: string) => this.root.querySelector<E>(`.${name}`)!;
    const said = `${mib(pages.slab)} in slabs, ${mib(pages.blocks + pages.large)} in other blocks, ` +
      `${mib(pages.per_cpu)} in per-CPU pages, ${mib(pages.free)} free, ${mib(pages.uncommitted)} not committed`;
    part('pages-sum').textContent = said;
    drawOrders(part('orders'), pages.orders);
    part('percpu').replaceChildren(table(pages));
    drawMap(part('map'), map);
    part('map').setAttribute('aria-label', `Memory: ${said}`);
  }
}

function table({ cpus, depot }: Pages): HTMLTableElement {
  const row = (name: string, blocks: number[]) =>
    made('tr', {}, made('th', { scope: 'row' }, name), ...blocks.map((n) => made('td', {}, n ? grouped(n) : '·')));
  return made('table', {},
    made('tr', {}, made('td'), ...depot.map((_, order) => made('th', { scope: 'col' }, String(order)))),
    ...cpus.slice(0, MOST_CPUS).map((blocks, cpu) => row(`CPU ${cpu}`, blocks)), row('shared', depot));
}

function drawOrders(canvas: HTMLCanvasElement, orders: Pages['orders']): void {
  const row = 16;
  const { g, width } = sheet(canvas, orders.length * row + 4);
  const most = Math.log2(2 + Math.max(...orders.map(sum)));
  const shades = [colours.used, colours.slab, colours.cached];
  orders.forEach((types, order) => {
    const y = order * row, all = sum(types);
    g.fillStyle = colours.quiet;
    g.textAlign = 'right';
    g.fillText(String(order), 16, y + 12);
    g.textAlign = 'left';
    // The length is a logarithm; its parts are in proportion.
    const length = all ? Math.max(2, (width - 90) * Math.log2(1 + all) / most) : 0;
    let x = 24;
    types.forEach((blocks, type) => {
      const part = all ? length * blocks / all : 0;
      g.fillStyle = shades[type]!;
      g.fillRect(x, y + 3, part, row - 5);
      x += part;
    });
    g.fillStyle = colours.ink;
    g.fillText(grouped(all), x + 6, y + 12);
  });
  canvas.setAttribute('aria-label', `Free blocks: ${orders.map((types, order) => `order ${order}: ${sum(types)}`).join(', ')}`);
}

const rgb = (colour: string): number[] => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

function drawMap(canvas: HTMLCanvasElement, map: Uint8Array): void {
  const squares = Math.max(1, map.length / (SQUARE * SQUARE));
  const width = canvas.clientWidth;
  const across = Math.max(10, Math.floor(width / 66));
  const side = SQUARE + 1; // with the line between two
  const wide = across * side, high = Math.ceil(squares / across) * side;
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  canvas.style.height = `${width * high / wide}px`;
  const g = canvas.getContext('2d')!;
  const image = g.createImageData(wide, high);
  const shades = [colours.line, colours.cached, colours.slab, colours.block].map((colour, is) => [...rgb(colour), is ? 255 : 110]);
  map.forEach((is, page) => {
    const [x, y] = MORTON[page % (SQUARE * SQUARE)]!, square = Math.floor(page / (SQUARE * SQUARE));
    image.data.set(shades[is]!, 4 * ((Math.floor(square / across) * side + y) * wide + (square % across) * side + x));
  });
  g.putImageData(image, 0, 0);
}
