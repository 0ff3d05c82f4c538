// Trays in a box: rows of places for pointers.

import type { Tray } from './moment.ts';

export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface TrayPlan extends Tray {
  box: Box;
  columns: number;
  /** Pixels from one pointer to the next; 0: there is no room for them, and a bar shows how many there are. */
  pitch: number;
  /** Pixels for the name in front of it; 0: it is not written. */
  label: number;
}

const PAD = 4, GAP = 8;

/** Trays in rows in a box, with as much from one pointer to the next as fits. The first one is the lowest. */
export function placed(trays: readonly Tray[], rooms: readonly number[], box: Box, most: number, label: number): TrayPlan[] {
  const own = trays.map((tray, i) => ({ ...tray, room: Math.max(tray.room, rooms[i] ?? 0) })).filter(({ room }) => room);
  const bars = own.filter(({ bar }) => bar);
  if (bars.length && bars.length < own.length) {
    const high = Math.min(17, box.h / 4), above = { ...box, h: box.h - bars.length * (high + 5) };
    return [...bars.map((tray, i) => ({ ...tray, box: { x: box.x, y: above.y + above.h + 5 + i * (high + 5), w: box.w, h: high }, columns: 1, pitch: 0, label: 0 })),
      ...placed(own.filter(({ bar }) => !bar), [], above, most, label)];
  }
  if (!own.length) return [];
  const wide = box.w - label, widest = Math.max(...own.map(({ room }) => room));
  let best: TrayPlan[] | null = null, score = 0;
  for (const parts of [1, 2, 4, 8, 16, 32]) {
    const across = Math.ceil(widest / parts);
    for (let pitch = most; pitch >= 3.5; pitch -= 0.5) {
      // Few lines are easier to read than large pointers.
      const value = pitch / (1 + 0.3 * Math.log2(parts));
      if (value <= score) break;
      if (across * pitch + 2 * PAD > wide) continue;
      const found: TrayPlan[] = [];
      let x = 0, y = 0, line = 0;
      const gap = Math.min(GAP, pitch * 0.45);
      for (const tray of [...own].reverse()) {
        const columns = Math.min(across, tray.room);
        const w = columns * pitch + 2 * PAD, h = Math.ceil(tray.room / columns) * pitch + 2 * PAD;
        if (x && (label || x + w > wide)) [x, y, line] = [0, y + line + gap, 0];
        found.unshift({ ...tray, box: { x: box.x + label + x, y: box.y + y, w, h }, columns, pitch, label });
        x += w + gap;
        line = Math.max(line, h);
      }
      if (y + line > box.h) continue;
      const down = (box.h - y - line) / 2;
      for (const tray of found) tray.box.y += down;
      [best, score] = [found, value];
      break;
    }
    if (across < 4) break;
  }
  if (best) return best;
  const gap = 2, high = (box.h + gap) / own.length - gap;
  if (high < 5) {
    const ids = own.flatMap(({ ids }) => ids), room = own.reduce((sum, { room }) => sum + room, 0), thick = Math.min(box.h, 24);
    return [{ name: 'all', room, ids, bar: own.length, box: { x: box.x, y: box.y + (box.h - thick) / 2, w: box.w, h: thick }, columns: 1, pitch: 0, label: 0 }];
  }
  return own.map((tray, i) => ({ ...tray, box: { x: box.x, y: box.y + (own.length - 1 - i) * (high + gap), w: box.w, h: high }, columns: 1, pitch: 0, label: 0 }));
}

/** Where the pointer number `i` of a tray is. */
export function slot({ box, columns, pitch }: TrayPlan, i: number): { x: number; y: number; r: number } {
  if (!pitch) return { x: box.x + box.w / 2, y: box.y + box.h / 2, r: 3 };
  return { x: box.x + PAD + (i % columns + 0.5) * pitch, y: box.y + PAD + (Math.floor(i / columns) + 0.5) * pitch, r: pitch * 0.37 };
}
