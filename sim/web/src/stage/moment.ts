// A moment of one cache as the stage shows it: who has each object's pointer, and where on the stage it has its seat.

import type { Level, ShownCache, Step, View } from '../views.ts';

/** Who has the pointer to an object. */
export type Holder = 'program' | 'cpu' | 'depot' | 'slab';

/** An object, by its slab's first page and its number in the slab. */
export type Id = number;
const MOST_OBJECTS = 65536;
export const idOf = (page: number, index: number): Id => page * MOST_OBJECTS + index;
export const placeOf = (id: Id): [page: number, index: number] => [Math.floor(id / MOST_OBJECTS), id % MOST_OBJECTS];

export const holderOf = (letter: string): Holder => (letter === 'u' ? 'program' : letter === 'd' ? 'depot' : letter === '.' ? 'slab' : 'cpu');

/** An object of a cache. */
export interface Place {
  cache: number;
  page: number;
  index: number;
}

/** A row of places for pointers: a magazine, a sheaf, an array. */
export interface Tray {
  name: string;
  room: number;
  /** The pointers, the next to be handed out last. */
  ids: Id[];
  /** Several magazines as one bar: how many they are. */
  bar?: number;
}

/** Seats that stay the same from moment to moment. */
export interface Seats {
  /** Of slabs, by first page. */
  slabs: ReadonlyMap<number, number>;
  /** Of shared containers, by their first pointer: a magazine keeps its seat while others come and go. */
  shared: ReadonlyMap<Id, number>;
  /** Of pointers that the program has, if all of them are known: the CPU that allocated it, and a place among the pointers of that CPU. */
  program: ReadonlyMap<Id, readonly [cpu: number, seat: number]>;
}

export interface Moment {
  view: View;
  /** The cache on the stage; `null`: it is not known yet. */
  shown: ShownCache | null;
  seats: Seats;
  /** What each page is: see `Engine.map`. */
  map: Uint8Array;
}

const NO_SEATS: Seats = { slabs: new Map(), shared: new Map(), program: new Map() };

const lowest = (taken: Set<number>): number => {
  let seat = 0;
  while (taken.has(seat)) seat++;
  return seat;
};

/** Most pointers of the program that are shown one by one. */
const MOST_USED = 400;

/** The seats of `keys`: a known key keeps its seat, and a new key gets the lowest free seat. */
function kept(keys: readonly number[], before: ReadonlyMap<number, number>): Map<number, number> {
  const seats = new Map(keys.flatMap((key) => { const seat = before.get(key); return seat === undefined ? [] : [[key, seat]]; }));
  const taken = new Set(seats.values());
  for (const key of keys) {
    if (seats.has(key)) continue;
    const seat = lowest(taken);
    seats.set(key, seat);
    taken.add(seat);
  }
  return seats;
}

/** The seats after a moment: those of `before`, and the lowest free ones for what is new. */
export function seated(shown: ShownCache | null, steps: readonly Step[], before: Seats = NO_SEATS): Seats {
  if (!shown) return NO_SEATS;
  const slabs = kept(shown.slabs.map(({ page }) => page).sort((a, b) => a - b), before.slabs);
  const shared = kept(sharedTrays(shown).flatMap(({ ids }) => ids.slice(0, 1)).reverse(), before.shared);
  return { slabs, shared, program: programSeats(shown, steps, before) };
}

function programSeats({ slabs, cpus, cache }: ShownCache, steps: readonly Step[], before: Seats): Seats['program'] {
  const program = new Map<Id, readonly [number, number]>(), fresh: Id[] = [], taken = cpus.map(() => new Set<number>());
  const made = new Map<Id | null, number>();
  for (const { cache: own, what, object, cpu } of steps) if (own === cache && what === 'alloc') made.set(object && idOf(...object), cpu);
  for (const { page, objects } of slabs) {
    for (let index = objects.indexOf('u'); index >= 0; index = objects.indexOf('u', index + 1)) {
      if (program.size + fresh.length >= MOST_USED) return new Map();
      const id = idOf(page, index), seat = before.program.get(id);
      if (!seat || made.has(id)) fresh.push(id);
      else {
        program.set(id, seat);
        taken[seat[0]]?.add(seat[1]);
      }
    }
  }
  for (const id of fresh) {
    const cpu = made.get(id);
    // The CPU that allocated it is not known: objects are not shown one by one.
    if (cpu === undefined) return new Map();
    const own = taken[cpu] ?? new Set(), seat = lowest(own);
    own.add(seat);
    program.set(id, [cpu, seat]);
  }
  return program;
}

/** The moment of a view, with the seats of the moment before. */
export function momentOf(view: View, cache: number, map: Uint8Array, before?: Moment): Moment {
  const shown = view.shown.find((own) => own.cache === cache) ?? null;
  return { view, shown, map, seats: seated(shown, view.steps, before?.seats) };
}

/** The containers that CPUs share above the slabs, in the order in which they leave. */
export const sharedTrays = ({ shared }: ShownCache): Tray[] =>
  shared.flat().map(({ name, room, places }) => ({ name, room, ids: places.map(([page, index]) => idOf(page, index)) }));

/** A CPU's levels as trays. A stack is cut into magazines, from its bottom; those below the loaded and the previous one are a bar. */
export function traysOf(levels: readonly Level[], capacity: number): Tray[] {
  return levels.flatMap(({ name, room, places }) => {
    const ids = places.map(([page, index]) => idOf(page, index));
    if (name !== 'stack' || !capacity || room <= capacity) return [{ name: name === 'stack' ? 'magazine' : name, room, ids }];
    const loaded = Math.max(Math.ceil(ids.length / capacity) - 1, 0), all = Math.ceil(room / capacity);
    // Each magazine keeps its row, so that it does not move when it becomes the previous one.
    const rows = [0, 1].map((row): Tray => {
      const at = loaded % 2 === row ? loaded : loaded - 1;
      return { name: at === loaded ? 'loaded' : 'previous', room: capacity, ids: at < 0 ? [] : ids.slice(at * capacity, (at + 1) * capacity) };
    });
    return all > 2 ? [{ name: 'more', room: room - 2 * capacity, ids: ids.slice(0, Math.max(loaded - 1, 0) * capacity), bar: all - 2 }, ...rows] : rows;
  });
}

export const capacityOf = ({ view, shown }: Moment): number => (shown ? view.caches[shown.cache]?.capacity ?? 0 : 0);

/** Whose lock an operation took, as far as it is on the stage. */
export interface Locks {
  depot: boolean;
  slabs: boolean;
  pages: boolean;
}

/** How many CPUs wait for each lock, on average over a run in virtual time. */
export type Waits = Record<keyof Locks, number>;

/** What a CPU does at a point in virtual time. It may hold a lock and wait for another. */
export interface Activity {
  is: 'program' | 'works' | 'waits' | 'finished';
  holds: readonly (keyof Locks)[];
  waits: keyof Locks | null;
}

export function locksOf(steps: readonly Step[]): Locks {
  const did = steps.flatMap(({ did }) => did), paths = steps.map(({ path }) => path);
  return {
    depot: did.some((what) => what.includes('the depot')) || paths.includes('depot'),
    slabs: did.some((what) => what.includes('the slab lists of its node')) || paths.includes('slab'),
    pages: did.some((what) => what.includes('the zone')),
  };
}
