// Machines under a script: the slab allocator, object by object, by hand.

import { made, noun } from '../draw.ts';
import { DESIGNS } from '../views.ts';
import type { Shown } from './demo.ts';
import { legend } from './moments.ts';
import { Player } from './player.ts';
import { link, type Route } from './route.ts';

export interface Scripted {
  name: string;
  title: string;
  /** In half a line, for a card. */
  card: string;
  what: string;
  design: string;
  script: readonly string[];
  /** The mark that it begins at: what is before it was done to warm up. */
  begins?: string;
  /** The mark whose end is on its card. */
  shows: string;
}

/** Two magazines of 8 for each CPU: as few pointers as show all that happens. */
export const SMALL = 'uslab:capacity=8:stock=0';

/** Commits what is committed once, such as the tables of CPUs, and shrinks. */
const warm = (cpus: number): string[] => [
  `cpus ${cpus}`, 'cache dentry 256', '# Warm-up: memory for the tables of CPUs and of the depot is committed', '0 alloc 17', '0 free 17',
  ...Array.from({ length: cpus - 1 }, (_, i) => [`${i + 1} alloc`, `${i + 1} free`]).flat(), '0 shrink',
];

export const MAGAZINES: Scripted = {
  name: 'magazines', title: 'Magazines on four CPUs', begins: 'A magazine fills', design: SMALL, shows: 'CPU 2 goes on',
  card: 'Four CPUs, a depot, one cache. Allocate and free on any CPU.',
  what: 'Four CPUs share one cache of 256-byte objects. Each CPU has two magazines, with room for 8 pointers to free objects each. It allocates and frees there without a lock. ' +
    'When both are full, one goes to the depot, which all CPUs share. When both are empty, one comes from there. Slabs are the last resort.',
  script: [
    ...warm(4), '# Objects are allocated and freed beforehand', '3 alloc 3', '0 alloc 20', '0 free 9 newest',
    '# A magazine fills: CPU 0 frees three objects', '0 free 3 newest',
    '# A full magazine goes to the depot', '0 free 1 newest',
    '# An empty CPU gets a magazine from the depot', '2 alloc',
    '# CPU 2 goes on without a lock', '2 alloc 3',
    '# A page becomes a slab', '1 alloc',
    '# Remote frees: CPU 1 frees what others allocated', '1 free 4 oldest',
    '# CPU 3 uses its last free objects, and takes eight more from the slab', '3 alloc 6',
    '# Slabs die: all that is free returns, and pages of empty slabs are freed', '2 free 4 newest', '3 free 9 newest', '0 shrink',
    '# Your turn: allocate and free on any CPU. Click an object in use to free it',
  ],
};

export const SLABS: Scripted = {
  name: 'slab', title: 'Slabs with constructors', design: 'bonwick94', shows: 'A second slab',
  card: 'The slab allocator of 1994: one CPU, one list of slabs.',
  what: 'One CPU and one cache of 512-byte objects. Each allocation takes an object from a slab, and each free returns it, as in 1994. ' +
    'The constructor runs once for each object of a new slab, and not at each allocation: a freed object stays constructed.',
  script: [
    'cpus 1', 'cache dentry 512', '# The first allocation makes a slab', '0 alloc', '# The slab fills', '0 alloc 7',
    '# A second slab is made', '0 alloc 6', '# Objects are freed and allocated again: no constructor runs', '0 free 5', '0 alloc 5',
    '# The first slab empties', '0 free 8 oldest', '# Shrinking frees the pages of the empty slab', '0 shrink',
  ],
};

export const SCRIPTED: readonly Scripted[] = [MAGAZINES, SLABS];

export async function showMachine(root: HTMLElement, wasm: WebAssembly.Module, own: Scripted, { values }: Route): Promise<Shown> {
  const facts = made('p', { className: 'quiet' }), chapters = made('ol', { className: 'took chapters' });
  const text = made('textarea', { rows: 12, spellcheck: false, ariaLabel: 'The script' });
  const list = made('input', { ariaLabel: 'Design', size: 26, spellcheck: false });
  list.setAttribute('list', 'designs');
  const names = made('datalist', { id: 'designs' }, ...DESIGNS.map(([name, about]) => made('option', { value: name }, about)), made('option', { value: SMALL }, 'small magazines'));

  const player = new Player(wasm, { name: own.name, begins: own.begins, changed });
  const shrink = made('button', { type: 'button', onclick: () => void player.add('0 shrink'), title: 'All CPUs and the depot return their objects; the pages of empty slabs are freed' }, 'shrink');
  player.bar.append(shrink);

  function changed(): void {
    const { at, views, marks, lines, design } = player, view = views[at];
    [list.value, text.value] = [design, lines.join('\n')];
    if (!view) return;
    const cache = view.caches[0], { begin } = player, mark = marks.findLast(({ operation }) => operation <= at);
    // What was done to warm up does not count.
    const warm = at >= begin ? views[begin]?.caches[0] : undefined;
    const since = (count: 'served' | 'slabs_made' | 'depot_exchanges') => (cache?.[count] ?? 0) - (warm?.[count] ?? 0);
    facts.textContent = cache ? `${noun(since('served'), 'operation')}${warm ? ' since the warm-up' : ''}. ${noun(since('slabs_made'), 'slab')} made, with ` +
      `${noun(since('slabs_made') * cache.per_slab, 'object')}: the constructor ran once for each. ${noun(since('depot_exchanges'), 'magazine')} moved to or from the depot.` : '';
    chapters.replaceChildren(...marks.map(({ operation, text }, i) => {
      const go = made('button', { type: 'button', onclick: () => player.stepper.go((marks[i + 1]?.operation ?? views.length) - 1) }, text);
      if (operation === mark?.operation) go.setAttribute('aria-current', 'step');
      return made('li', {}, go);
    }));
    const script = lines.join(';') !== own.script.join(';');
    history.replaceState(null, '', link('machine', { name: own.name, ...(design !== own.design && { design }), ...(script && { do: lines.join(';') }), at: String(at) }));
  }

  list.onchange = () => player.attempt(async () => {
    const { at } = player;
    await player.run(player.lines, list.value);
    player.go(at);
  });
  const rerun = made('button', { type: 'button', onclick: () => player.attempt(async () => {
    await player.run(text.value.split('\n'), player.design);
    player.go(0);
  }) }, 'run the script');
  root.replaceChildren(made('div', { className: 'first' }, made('h2', {}, own.title, ' ', made('span', { className: 'quiet' }, own.card)), player.root),
    made('section', {}, made('h3', {}, 'Jump to'), chapters, made('p', { className: 'what' }, own.what), facts,
      made('div', { className: 'bar' }, made('label', {}, 'design ', list), names, made('a', { href: '#designs' }, 'list of designs')),
      made('details', {}, made('summary', {}, 'The script'), text, rerun)), legend(true));
  await player.attempt(() => player.run(values.get('do')?.split(';') ?? own.script, values.get('design') ?? own.design));
  if (!player.views.length) {
    // What is wrong with the link is still shown.
    const wrong = player.problem.textContent;
    await player.run(own.script, own.design);
    player.problem.textContent = wrong;
  }
  player.open(values.get('at'));
  return {
    view: () => ({ at: player.at, view: player.views[player.at] }),
    key: (key, event) => player.key(key, event.code, event.shiftKey),
    leave: () => player.leave(),
    redraw: () => player.redraw(),
    stage: () => player.stage,
  };
}
