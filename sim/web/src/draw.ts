// What all pictures are drawn with.

import type { Level } from './views.ts';

export const $ = <E extends HTMLElement = HTMLElement>(id: string): E => document.getElementById(id) as E;

/** A new element. */
export function made<K extends keyof HTMLElementTagNameMap>(
  tag: K, own: Partial<HTMLElementTagNameMap[K]> = {}, ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = Object.assign(document.createElement(tag), own);
  element.append(...children);
  return element;
}

export const grouped = (n: number): string => Math.round(n).toLocaleString('en-US');
export const noun = (n: number, one: string): string => `${grouped(n)} ${one}${n === 1 ? '' : 's'}`;
export const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

const NAMES = ['ink', 'quiet', 'line', 'soft', 'card', 'used', 'cached', 'depot', 'free', 'now', 'slab', 'block'] as const;

/** As page.css has them. */
export const colours = {} as Record<(typeof NAMES)[number], string>;

export function readColours(): void {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) colours[name] = style.getPropertyValue(`--${name}`).trim();
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

/** What is held at one level, as a column that fills from below. */
export function column(
  g: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, { objects, room }: Level, colour: string,
): void {
  g.strokeStyle = room ? colours.quiet : colours.line;
  if (width >= 4) g.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  if (!room) return;
  const fill = (height - 2) * Math.min(1, objects / room);
  const edge = width >= 4 ? 1 : 0;
  g.fillStyle = colour;
  g.fillRect(x + edge, y + height - 1 - fill, width - 2 * edge, fill);
}

/** So much of `room` for each who wants so much: who wants little gets it, the others share the rest. */
export function shares(wanted: readonly number[], room: number): number[] {
  const got = wanted.map(() => 0);
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a]! - wanted[b]!);
  let left = Math.max(room, 0);
  order.forEach((i, at) => {
    got[i] = Math.min(wanted[i]!, left / (order.length - at));
    left -= got[i];
  });
  return got;
}
