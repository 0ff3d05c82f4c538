// Pages: free blocks by order, per-CPU pages, and a map of memory that can be zoomed and names a page's owner.

import { $, colours, fitted, grouped, made, noun, pixel, sheet, sum } from '../draw.ts';
import type { Pages, View } from '../views.ts';

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

const mib = (pages: number): string => (pages < 256 ? `${pages * 4} KiB` : `${(pages / 256).toFixed(pages < 25600 ? 1 : 0)} MiB`);

export class PagesBelow {
  readonly root: HTMLElement;
  /** What was drawn last. */
  private held = '';
  private look = '';
  private image: ImageData | null = null;
  private before = new Uint8Array();

  private zoom = 1;
  private map: Uint8Array = new Uint8Array();
  /** Caches of slabs by page at this moment; `null` before they are needed. */
  private owners: Map<number, string> | null = null;

  /** `whole` has every slab of every cache. */
  constructor(private readonly whole: () => View) {
    const template = $<HTMLTemplateElement>('pages').content.cloneNode(true) as DocumentFragment;
    this.root = template.firstElementChild as HTMLElement;
    const part = <E extends HTMLElement>(name: string) => this.root.querySelector<E>(`.${name}`)!;
    const canvas = part<HTMLCanvasElement>('map');
    const zoom = (factor: number) => {
      const window = part('window'), middle = (window.scrollTop + window.clientHeight / 2) / Math.max(canvas.clientHeight, 1), across = (window.scrollLeft + window.clientWidth / 2) / Math.max(canvas.clientWidth, 1);
      this.zoom = Math.min(Math.max(this.zoom * factor, 1), 16);
      canvas.style.width = `${100 * this.zoom}%`;
      canvas.style.height = 'auto';
      window.scrollTo(across * canvas.clientWidth - window.clientWidth / 2, middle * canvas.clientHeight - window.clientHeight / 2);
    };
    part('closer').onclick = () => zoom(2);
    part('wider').onclick = () => zoom(0.5);
    canvas.onpointermove = ({ offsetX, offsetY }) => {
      const page = this.pageAt(offsetX / canvas.clientWidth * canvas.width, offsetY / canvas.clientHeight * canvas.height);
      part('owner').textContent = page === null ? 'Point at a page to see its owner.' : this.ownerSaid(page);
    };
  }

  private across = 1;
  private pageAt(x: number, y: number): number | null {
    const side = SQUARE + 1, square = Math.floor(y / side) * this.across + Math.floor(x / side), [left, top] = [Math.floor(x % side), Math.floor(y % side)];
    const inside = MORTON.findIndex(([x, y]) => x === left && y === top), page = square * SQUARE * SQUARE + inside;
    return inside >= 0 && x < this.across * side && page < this.map.length ? page : null;
  }
  private ownerSaid(page: number): string {
    const is = this.map[page], name = `Page ${grouped(page)}: `;
    if (is !== 2) return name + ['free', 'free, kept by a CPU', '', 'a block of another user: a file, a page table, or user memory'][is ?? 0]!;
    if (!this.owners) {
      this.owners = new Map();
      const { shown, caches } = this.whole();
      for (const { cache, slabs } of shown) for (const { page } of slabs) for (let own = 0; own < 1 << caches[cache]!.order; own++) this.owners.set(page + own, `a slab of ${caches[cache]!.name}`);
    }
    return name + (this.owners.get(page) ?? 'a large object of kmalloc');
  }

  draw(pages: Pages, map: Uint8Array): void {
    [this.map, this.owners] = [map, null];
    const part = <E extends HTMLElement>(name: string) => this.root.querySelector<E>(`.${name}`)!;
    const said = `${mib(pages.slab)} in slabs, ${mib(pages.blocks + pages.large)} in other blocks, ` +
      `${mib(pages.per_cpu)} in per-CPU pages, ${mib(pages.free)} free and committed, ${mib(pages.uncommitted)} not committed`;
    part('pages-sum').textContent = said;
    drawOrders(part('orders'), pages);
    const held = [pages.cpus, pages.depot].join();
    if (held !== this.held) part('percpu').replaceChildren(table(pages));
    this.held = held;
    this.drawMap(part('map'), map);
    part('map').setAttribute('aria-label', `Memory: ${said}`);
  }

  /** Only what changed since the last picture. */
  private drawMap(canvas: HTMLCanvasElement, map: Uint8Array): void {
    const squares = Math.max(1, map.length / (SQUARE * SQUARE));
    const across = this.across = Math.max(10, Math.floor(this.root.clientWidth * 0.6 / 66));
    const side = SQUARE + 1; // with the line between two
    const wide = across * side, high = Math.ceil(squares / across) * side;
    const shades = [pixel(colours.line, 110), pixel(colours['page-cpu']), pixel(colours['page-slab']), pixel(colours['page-other'])];
    const look = [wide, high, map.length, ...shades].join();
    const g = canvas.getContext('2d')!;
    if (look !== this.look) {
      this.look = look;
      [canvas.width, canvas.height] = [wide, high];
      canvas.style.height = 'auto';
      this.image = g.createImageData(wide, high);
      this.before = new Uint8Array(map.length).fill(shades.length);
    }
    const words = new Uint32Array(this.image!.data.buffer);
    for (let page = 0; page < map.length; page++) {
      if (map[page] === this.before[page]) continue;
      const [x, y] = MORTON[page % (SQUARE * SQUARE)]!, square = Math.floor(page / (SQUARE * SQUARE));
      words[(Math.floor(square / across) * side + y) * wide + (square % across) * side + x] = shades[map[page]!]!;
    }
    this.before.set(map);
    g.putImageData(this.image!, 0, 0);
  }
}

function table({ cpus, depot }: Pages): HTMLTableElement {
  const row = (name: string, blocks: number[]) =>
    made('tr', {}, made('th', { scope: 'row' }, name), ...blocks.map((n) => made('td', {}, n ? grouped(n) : '·')));
  return made('table', {},
    made('tr', {}, made('td'), ...depot.map((_, order) => made('th', { scope: 'col' }, String(order)))),
    ...cpus.slice(0, MOST_CPUS).map((blocks, cpu) => row(`CPU ${cpu}`, blocks)), row('shared', depot));
}

/** Committed free memory by order, to scale; blocks that are not committed are told in words. */
function drawOrders(canvas: HTMLCanvasElement, { orders, uncommitted_orders: uncommitted }: Pages): void {
  const row = 16, words = 150;
  const { g, width } = sheet(canvas, orders.length * row + 4);
  const committed = orders.map((types, order) => sum(types) - uncommitted[order]!);
  const most = Math.max(...committed.map((blocks, order) => blocks << order), 1);
  const shades = [colours.ink, colours.block, colours.soft];
  const said = committed.map((blocks, order) => `${noun(blocks, 'block')}${blocks ? `, ${mib(blocks << order)}` : ''}${uncommitted[order] ? `; ${grouped(uncommitted[order]!)} not committed` : ''}`);
  orders.forEach((types, order) => {
    const y = order * row, all = sum(types);
    g.fillStyle = colours.quiet;
    g.textAlign = 'right';
    g.fillText(String(order), 16, y + 12);
    g.textAlign = 'left';
    const length = committed[order] ? Math.max(2, (width - 24 - words) * (committed[order]! << order) / most) : 0;
    let x = 24;
    types.forEach((blocks, type) => {
      const part = length * blocks / all || 0;
      g.fillStyle = shades[type]!;
      g.fillRect(x, y + 3, part, row - 5);
      if (type === 2 && part > 2) {
        g.strokeStyle = colours.quiet;
        g.strokeRect(x + 0.5, y + 3.5, part - 1, row - 6);
      }
      x += part;
    });
    g.fillStyle = committed[order] ? colours.ink : colours.quiet;
    g.fillText(fitted(g, said[order]!, width - x - 6), x + 6, y + 12);
  });
  canvas.setAttribute('aria-label', `Free memory: ${said.map((text, order) => `order ${order}: ${text}`).join(', ')}`);
}
