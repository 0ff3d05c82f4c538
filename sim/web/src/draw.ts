// What all pictures are drawn with.

export const $ = <E extends HTMLElement = HTMLElement>(id: string): E => document.getElementById(id) as E;

/** A new element. */
export function made<K extends keyof HTMLElementTagNameMap>(
  tag: K, own: Partial<HTMLElementTagNameMap[K]> = {}, ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = Object.assign(document.createElement(tag), own);
  element.append(...children);
  return element;
}

const { format } = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
/** As all pages write whole numbers; below 0 with a minus. */
export const grouped = (n: number): string => format(Math.round(n) + 0).replace('-', '−');
export const noun = (n: number, one: string): string => `${grouped(n)} ${one}${n === 1 ? '' : 's'}`;
export const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

const NAMES = [
  'ink', 'quiet', 'line', 'soft', 'card', 'used', 'cached', 'depot', 'free', 'now', 'block', 'page-slab', 'page-other', 'page-cpu', 'depot-path', 'slab-path',
  'pages-path', 'commit-path', 'curve-1', 'curve-2', 'curve-3', 'curve-4',
] as const;

/** As page.css has them. */
export const colours = {} as Record<(typeof NAMES)[number], string>;

export function readColours(): void {
  const style = getComputedStyle(document.documentElement);
  // `#rgb` is `#rrggbb` in short.
  for (const name of NAMES) colours[name] = style.getPropertyValue(`--${name}`).trim().replace(/^#(.)(.)(.)$/, '#$1$1$2$2$3$3');
}

export interface Sheet {
  g: CanvasRenderingContext2D;
  width: number;
  height: number;
}

/** A canvas of its element's width and so many pixels high, cleared. */
export function sheet(canvas: HTMLCanvasElement, height: number): Sheet {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  const wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const g = canvas.getContext('2d')!;
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = '11px system-ui, sans-serif';
  g.textBaseline = 'alphabetic';
  g.textAlign = 'left';
  g.lineWidth = 1;
  return { g, width, height };
}

/** A colour as page.css has it, as a pixel. */
export const pixel = (colour: string, alpha = 255): number =>
  [5, 3, 1].reduce((word, i) => word << 8 | parseInt(colour.slice(i, i + 2), 16), alpha) >>> 0;

/** As much of a text as fits: nothing is squeezed. */
export function fitted(g: CanvasRenderingContext2D, text: string, width: number): string {
  if (g.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 0 && g.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return length ? `${text.slice(0, length)}…` : '';
}

const SVG = 'http://www.w3.org/2000/svg';
type Attributes = Record<string, string | number>;

export function svg<K extends keyof SVGElementTagNameMap>(tag: K, own: Attributes, ...children: (Node | string)[]): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(own)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** A picture as wide as its place, in pixels, so that its texts and bars are as large everywhere. `parts` returns its height and elements at a width. */
export function drawing(own: Attributes, parts: (width: number) => readonly [height: number, Node[]]): SVGSVGElement {
  const root = svg('svg', { ...own, role: 'img', width: '100%' });
  const draw = (width: number) => {
    const [height, nodes] = parts(width);
    root.setAttribute('height', String(height));
    root.replaceChildren(...nodes);
  };
  draw(800);
  new ResizeObserver(([entry]) => {
    if (entry?.contentRect.width) draw(entry.contentRect.width);
  }).observe(root);
  return root;
}
