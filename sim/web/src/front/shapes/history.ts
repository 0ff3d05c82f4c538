// A memory over time: each request is a column, and each address is a row.

import { colours, sheet } from '../../draw.ts';
import type { Scene } from '../../scenes.ts';

const HIGH = 110;

/** Free memory in the largest piece and in other pieces, and memory in use. */
export const MEANS = [['used', 'in use'], ['soft', 'the largest free piece'], ['cached', 'other free pieces'], ['block', 'rounding, headers and tags']] as const;

/** Draws the memory up to scene `at`. */
export function history(canvas: HTMLCanvasElement, scenes: readonly Scene[], at: number): void {
  const { g, width, height } = sheet(canvas, HIGH), wide = width / (scenes.length - 1);
  for (let n = 1; n <= at; n++) {
    const { parts } = scenes[n]!, total = parts.reduce((sum, part) => sum + part.bytes, 0);
    const largest = parts.reduce((most, part) => (part.is === 'free' && part.bytes > (most?.bytes ?? 0) ? part : most), parts.find((part) => part.is === 'free'));
    for (const part of parts) {
      g.fillStyle = colours[part.is === 'used' ? 'used' : part === largest ? 'soft' : part.is === 'free' ? 'cached' : 'block'];
      g.fillRect((n - 1) * wide, part.at / total * height, wide + 0.4, part.bytes / total * height + 0.4);
    }
  }
  g.fillStyle = colours.now;
  g.fillRect(Math.max(at * wide - 1, 0), 0, 2, height);
}
