// Shapes, and what writes them: a canvas, or an SVG file.

/** A rounded rectangle, turned around its centre; a circle if it is round enough. */
interface Rect {
  is: 'rect';
  x: number;
  y: number;
  w: number;
  h: number;
  r?: number;
  turn?: number;
  fill?: string;
  stroke?: string;
  line?: number;
  dash?: readonly number[];
  alpha?: number;
}

interface Text {
  is: 'text';
  x: number;
  y: number;
  text: string;
  size: number;
  fill: string;
  bold?: boolean;
  align?: 'left' | 'center' | 'right';
  alpha?: number;
}

/** Lines and curves, in SVG's words. */
interface Path {
  is: 'path';
  d: string;
  fill?: string;
  stroke?: string;
  line?: number;
  dash?: readonly number[];
  alpha?: number;
}

/** Many small squares of one colour: the corners, x and y in turn. */
interface Squares {
  is: 'squares';
  at: readonly number[];
  side: number;
  fill: string;
  alpha?: number;
}

export type Shape = Rect | Text | Path | Squares;

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

export function onCanvas(g: CanvasRenderingContext2D, shapes: readonly Shape[]): void {
  for (const shape of shapes) {
    g.globalAlpha = shape.alpha ?? 1;
    if (shape.is === 'text') {
      g.font = `${shape.bold ? '600 ' : ''}${shape.size}px ${FONT}`;
      g.textAlign = shape.align ?? 'left';
      g.fillStyle = shape.fill;
      g.fillText(shape.text, shape.x, shape.y);
      continue;
    }
    if (shape.is === 'squares') {
      const { at, side } = shape;
      g.fillStyle = shape.fill;
      for (let i = 0; i < at.length; i += 2) g.fillRect(at[i]!, at[i + 1]!, side, side);
      continue;
    }
    if (shape.is === 'rect' && !shape.r && !shape.turn && !shape.stroke) {
      g.fillStyle = shape.fill ?? 'none';
      g.fillRect(shape.x, shape.y, shape.w, shape.h);
      continue;
    }
    const path = shape.is === 'path' ? new Path2D(shape.d) : null;
    if (shape.is === 'rect') {
      const { x, y, w, h, r = 0, turn = 0 } = shape;
      g.beginPath();
      if (turn) {
        g.save();
        g.translate(x + w / 2, y + h / 2);
        g.rotate(turn * Math.PI / 180);
        g.roundRect(-w / 2, -h / 2, w, h, r);
        g.restore();
      } else g.roundRect(x, y, w, h, Math.min(r, w / 2, h / 2));
    }
    if (shape.fill) {
      g.fillStyle = shape.fill;
      if (path) g.fill(path);
      else g.fill();
    }
    if (shape.stroke) {
      g.strokeStyle = shape.stroke;
      g.lineWidth = shape.line ?? 1;
      g.setLineDash(shape.dash as number[] ?? []);
      if (path) g.stroke(path);
      else g.stroke();
    }
  }
  g.globalAlpha = 1;
  g.setLineDash([]);
}

const escaped = (text: string): string => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const short = (n: number): string => String(Math.round(n * 100) / 100);

/** The same as a file. */
export function asSvg(shapes: readonly Shape[], w: number, h: number, title: string): string {
  const lines = shapes.map((shape) => {
    const own: [string, string | number | undefined][] = [];
    if (shape.is === 'text') {
      own.push(['x', short(shape.x)], ['y', short(shape.y)], ['font-size', short(shape.size)], ['fill', shape.fill], ['font-weight', shape.bold ? 600 : undefined],
        ['text-anchor', shape.align === 'right' ? 'end' : shape.align === 'center' ? 'middle' : undefined], ['opacity', shape.alpha]);
      return `<text${written(own)}>${escaped(shape.text)}</text>`;
    }
    if (shape.is === 'squares') {
      const { at, side, fill } = shape, square = `h${short(side)}v${short(side)}h${short(-side)}z`, d: string[] = [];
      for (let i = 0; i < at.length; i += 2) d.push(`M${short(at[i]!)} ${short(at[i + 1]!)}${square}`);
      return `<path${written([['d', d.join('')], ['fill', fill]])}/>`;
    }
    const drawn: typeof own = [['fill', shape.fill ?? 'none'], ['stroke', shape.stroke], ['stroke-width', shape.stroke && short(shape.line ?? 1)],
      ['stroke-dasharray', shape.dash?.join(' ')], ['opacity', shape.alpha]];
    if (shape.is === 'path') return `<path${written([['d', shape.d], ...drawn])}/>`;
    const { x, y, w, h, r, turn } = shape;
    return `<rect${written([['x', short(x)], ['y', short(y)], ['width', short(w)], ['height', short(h)], ['rx', r && short(Math.min(r, w / 2, h / 2))],
      ['transform', turn ? `rotate(${short(turn)} ${short(x + w / 2)} ${short(y + h / 2)})` : undefined], ...drawn])}/>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}" font-family="${escaped(FONT)}" role="img">\n` +
    `<title>${escaped(title)}</title>\n${lines.join('\n')}\n</svg>\n`;
}

const written = (own: readonly [string, string | number | undefined][]): string =>
  own.filter(([, value]) => value !== undefined && value !== '').map(([name, value]) => ` ${name}="${value}"`).join('');

/** A colour between two, `#rrggbb` each. */
export function blended(a: string, b: string, t: number): string {
  const part = (colour: string, i: number) => parseInt(colour.slice(i, i + 2), 16);
  return `#${[1, 3, 5].map((i) => Math.round(part(a, i) + (part(b, i) - part(a, i)) * t).toString(16).padStart(2, '0')).join('')}`;
}
