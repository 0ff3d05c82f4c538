// What CPUs hold of a cache, and what they share, as levels with names.

import { sum } from './draw.ts';
import type { ShownCache } from './views.ts';

export interface Level {
  name: string;
  objects: number;
  room: number;
}

export interface Levels {
  /** By CPU. */
  cpus: Level[][];
  /** By node. */
  shared: Level[][];
}

/** Of a cache, from the magazines that the engine tells of. */
export function levelsOf({ cpus, depots }: ShownCache): Levels {
  const level = (name: string, [objects, room]: [number, number]): Level => ({ name, objects, room });
  return {
    cpus: cpus.map(({ loaded, previous, stock, empty }) => [
      level('loaded', loaded),
      level('previous', previous),
      level('below', [sum(stock), (stock.length + empty) * loaded[1]]),
    ].filter(({ name, room }) => name === 'loaded' || room > 0)),
    shared: depots.map(({ full }) => full.map((objects) => ({ name: 'magazine', objects, room: objects }))),
  };
}

export const total = (levels: readonly Level[]): Level => ({
  name: 'all', objects: sum(levels.map(({ objects }) => objects)), room: sum(levels.map(({ room }) => room)),
});

/** In words. */
export const said = (levels: readonly Level[]): string =>
  levels.map(({ name, objects, room }) => (room ? `${name} ${objects} of ${room}` : `${name} none`)).join(', ');
