// A machine of few CPUs under a script of few lines: the slab allocator, object by object, by hand.

import { made, noun } from '../draw.ts';
import { DESIGNS, type Mark, type View } from '../views.ts';
import type { Shown } from './demo.ts';
import { legend, moments, Picture, told } from './moments.ts';
import { link, type Route } from './route.ts';
import { Stepper } from './stepper.ts';

export interface Scripted {
  name: string;
  title: string;
  what: string;
  design: string;
  script: readonly string[];
  /** The mark that it begins at: what is before it was done to warm up. */
  begins?: string;
}

export const SCRIPTED: readonly Scripted[] = [
  {
    name: 'slab', title: 'Slabs with constructors', design: 'bonwick94',
    what: 'One CPU and one cache, of 512-byte objects. Each allocation takes an object from a slab, and each free puts it back, as in 1994. ' +
      'The constructor runs once for each object of a new slab, and not at each allocation: a freed object stays constructed.',
    script: [
      'cpus 1', 'cache dentry 512', '# The first allocation makes a slab', '0 alloc', '# The slab fills', '0 alloc 7',
      '# A second slab is made', '0 alloc 6', '# Objects are freed and allocated again: no constructor runs', '0 free 5', '0 alloc 5',
      '# The first slab empties', '0 free 8 oldest', '# Shrinking gives the empty slab back', '0 shrink',
    ],
  },
  {
    name: 'magazines', title: 'Magazines on four CPUs', begins: 'CPU 0 allocates', design: 'uslab:capacity=8:stock=0',
    what: 'Four CPUs share one cache, of 256-byte objects. Each CPU has a stack of free objects and uses it without a lock; here it has room for two magazines of 8. ' +
      'When the stack is full, a magazine goes to the depot, which all CPUs share; when it is empty, one comes back. The slabs are the last resort.',
    script: [
      'cpus 4', 'cache dentry 256', '# Warm-up: what is made once, is made, such as the tables of CPUs and of the depot', '0 alloc 17', '0 free 17', ...[1, 2, 3].flatMap((cpu) => [`${cpu} alloc`, `${cpu} free`]), '0 shrink',
      '# CPU 0 allocates: slabs are made, and objects come eight at a time', '0 alloc 40',
      '# A magazine fills: CPU 0 frees to its own stack', '0 free 16 newest',
      '# A depot visit: the stack is full, and a magazine goes to the depot', '0 free 1 newest',
      '# CPU 0 frees on: its stack has room again', '0 free 3 newest',
      '# CPU 0 allocates: from its stack, and then from the depot', '0 alloc 20',
      '# Remote frees: CPU 1 frees what CPU 0 allocated', '1 free 40 oldest',
      '# CPU 2 allocates them: the magazines come from the depot', '2 alloc 30', '# CPU 3 frees them', '3 free 30 oldest',
      '# A slab dies: all that CPUs hold goes back, and empty slabs are given back', '0 shrink',
    ],
  },
];

const MORE = [1, 10, 40];

export async function showMachine(root: HTMLElement, wasm: WebAssembly.Module, own: Scripted, { values }: Route): Promise<Shown> {
  let script = values.get('do')?.split(';') ?? [...own.script];
  let design = values.get('design') ?? own.design;
  let views: View[] = [], picture: Picture | null = null, marks: readonly Mark[] = [], cpus = 1;

  const said = made('p', { className: 'said' }), facts = made('p', { className: 'quiet' }), problem = made('p', { className: 'problem', role: 'alert' });
  said.setAttribute('aria-live', 'polite');
  const place = made('div'), chapters = made('ol', { className: 'took chapters' }), controls = made('div', { className: 'commands' });
  const text = made('textarea', { rows: 12, spellcheck: false, ariaLabel: 'The script' });
  const list = made('input', { ariaLabel: 'Design', size: 26, spellcheck: false });
  list.setAttribute('list', 'designs');
  const names = made('datalist', { id: 'designs' }, ...DESIGNS.map(([name, about]) => made('option', { value: name }, about)), made('option', { value: 'uslab:capacity=8:stock=0' }, 'small magazines'));
  const stepper = new Stepper('Operations', 0, () => draw(), 160);

  /** Runs it once, and keeps each moment. Throws, and changes nothing, if it cannot run. */
  async function run(wanted: readonly string[], on: string): Promise<void> {
    const ran = await moments(wasm, wanted.join('\n'), on);
    const { about } = ran;
    [views, script, design, marks, cpus] = [ran.views, [...wanted], on, about.marks, about.cpus];
    picture = new Picture(about, design, ({ page, index }) => void free(page, index));
    place.replaceChildren(picture.root);
    text.value = script.join('\n');
    list.value = on;
    problem.textContent = '';
  }
  const attempt = (act: () => Promise<void>) => act().catch((error: unknown) => {
    problem.textContent = error instanceof Error ? error.message : String(error);
    text.value = script.join('\n');
    list.value = design;
  });

  /** Lines up to this moment, and one more. */
  const add = (line: string) => attempt(async () => {
    await run([...upTo(script, stepper.at), line], design);
    stepper.set(views.length - 1, views.length - 1);
  });
  /** The object at that place, if a caller has it. */
  async function free(page: number, index: number): Promise<void> {
    let born = -1, object = -1;
    for (const { steps } of views.slice(0, stepper.at + 1))
      for (const step of steps) {
        if (step.what === 'alloc') born++;
        if (step.object?.[0] === page && step.object[1] === index) object = step.what === 'alloc' ? born : -1;
      }
    if (object >= 0) await add(`0 free @${object}`);
  }

  function draw(): void {
    const view = views[stepper.at];
    if (!view || !picture) return;
    const cache = view.caches[0];
    const mark = marks.findLast(({ operation }) => operation <= stepper.at);
    said.replaceChildren(...told(view, marks), stepper.at ? '' : 'Nothing has happened yet. Press play, step, or do something yourself.');
    // What was done to warm up does not count.
    const warm = stepper.at >= begin() ? views[begin()]!.caches[0] : undefined;
    const since = (count: 'served' | 'slabs_made' | 'depot_exchanges') => (cache?.[count] ?? 0) - (warm?.[count] ?? 0);
    facts.textContent = cache ? `${noun(since('served'), 'operation')} ${warm ? 'since the warm-up' : 'so far'}. ${noun(since('slabs_made'), 'slab')} made, with ` +
      `${noun(since('slabs_made') * cache.per_slab, 'object')}: a constructor runs once for each of them. ${noun(since('depot_exchanges'), 'magazine')} moved to or from the depot.` : '';
    picture.draw(view);
    chapters.replaceChildren(...marks.map(({ operation, text }, i) => {
      const go = made('button', { type: 'button', onclick: () => stepper.go((marks[i + 1]?.operation ?? views.length) - 1) }, text);
      if (operation === mark?.operation) go.setAttribute('aria-current', 'step');
      return made('li', {}, go);
    }));
    const changed = script.join(';') !== own.script.join(';');
    history.replaceState(null, '', link('machine', { name: own.name, ...(design !== own.design && { design }), ...(changed && { do: script.join(';') }), at: String(stepper.at) }));
  }

  function begin(): number {
    return marks.find(({ text }) => own.begins && text.startsWith(own.begins))?.operation ?? 0;
  }
  function drawControls(): void {
    controls.replaceChildren(...Array.from({ length: cpus }, (_, cpu) => {
      const group = made('div', { className: 'buttons', role: 'group' }, made('span', { className: 'verb' }, `CPU ${cpu}`),
        ...MORE.map((n) => made('button', { type: 'button', onclick: () => add(`${cpu} alloc ${n}`) }, `alloc ${n}`)),
        ...MORE.map((n) => made('button', { type: 'button', onclick: () => add(`${cpu} free ${n} oldest`) }, `free ${n}`)));
      group.setAttribute('aria-label', `CPU ${cpu}`);
      return group;
    }), made('div', { className: 'buttons' }, made('button', { type: 'button', onclick: () => add('0 shrink') }, 'shrink: give empty slabs back')));
  }

  list.onchange = () => attempt(async () => {
    const { at } = stepper;
    await run(script, list.value);
    stepper.set(views.length - 1, at);
  });
  const rerun = made('button', { type: 'button', onclick: () => attempt(async () => {
    await run(text.value.split('\n'), design);
    drawControls();
    stepper.set(views.length - 1, 0);
  }) }, 'run the script');
  root.replaceChildren(made('section', {}, made('h2', {}, own.title), made('p', { className: 'what' }, own.what),
    stepper.root, made('div', { className: 'bar' }, made('label', {}, 'design ', list), names, made('a', { href: '#designs' }, 'list of designs')),
    said, facts, problem, made('h3', {}, 'Jump to'), chapters), place, legend(true),
  made('section', {}, made('h3', {}, 'Do it yourself'), made('p', { className: 'quiet' }, 'From this moment on; a click on an object in use frees it on CPU 0.'), controls,
    made('details', {}, made('summary', {}, 'The script'), text, rerun)));
  await attempt(() => run(script, design));
  if (!views.length) {
    // What is wrong with the link stays said.
    const wrong = problem.textContent;
    await run(own.script, own.design);
    problem.textContent = wrong;
  }
  drawControls();
  requestAnimationFrame(() => stepper.set(views.length - 1, Number(values.get('at') ?? begin()) || 0));
  const resized = () => draw();
  addEventListener('resize', resized);
  return {
    view: () => ({ at: stepper.at, view: views[stepper.at] }),
    key: (key) => stepper.key(key),
    leave: () => {
      stepper.stop();
      removeEventListener('resize', resized);
    },
  };
}

/** The lines of a script that begin before an operation; the one that it is in the midst of is cut there. */
function upTo(script: readonly string[], operation: number): string[] {
  const lines: string[] = [];
  let at = 0;
  for (const line of script) {
    const words = line.trim().split(/\s+/);
    if (['cpus', 'zone', 'cache', ''].includes(words[0]!)) {
      lines.push(line);
      continue;
    }
    if (at >= operation) break;
    const place = words[1] === 'alloc-pages' ? 3 : 2; // of how many
    const counted = /^\d+$/.test(words[place] ?? '');
    const takes = words[0]!.startsWith('#') || words[1] === 'shrink' || !counted ? 1 : Number(words[place]);
    lines.push(takes > operation - at ? [...words.slice(0, place), operation - at, ...words.slice(place + 1)].join(' ') : line);
    at += takes;
  }
  return lines;
}
