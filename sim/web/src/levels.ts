// What CPUs hold of a cache, and what they share, level by level.

import { sum } from './draw.ts';
import type { Level } from './views.ts';

/** Of all of them. */
export const total = (levels: readonly Level[]): Pick<Level, 'objects' | 'room'> => ({
  objects: sum(levels.map(({ objects }) => objects)), room: sum(levels.map(({ room }) => room)),
});

/** In words; levels of one name are counted together. */
export function said(levels: readonly Level[]): string {
  const names = [...new Set(levels.map(({ name }) => name))];
  return names.map((name) => {
    const own = levels.filter((level) => level.name === name);
    const { objects, room } = total(own);
    return `${own.length > 1 ? `${own.length} × ` : ''}${name} ${room ? `${objects} of ${room}` : 'empty'}`;
  }).join(', ');
}
