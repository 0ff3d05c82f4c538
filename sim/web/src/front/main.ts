// The front page: demos to click at, what designs and words there are, and where to go on.

import '../page.css';
import './front.css';
import { unpacked } from '../carried.ts';
import { $, made, readColours } from '../draw.ts';
import { Lab } from '../engine.ts';
import { DESIGNS } from '../views.ts';
import { showCourse, showLecturer } from './course.ts';
import { showDemo, type Shown } from './demo.ts';
import { Kept } from './kept.ts';
import { showLab } from './lab.ts';
import { showLatency } from './latency.ts';
import { SCRIPTED, showMachine } from './machines.ts';
import { nav } from '../nav.ts';
import { showRace } from './race.ts';
import { here, link } from './route.ts';
import { WORDS } from './words.ts';

const PLAIN: Shown = { view: () => null, key: () => false, leave: () => undefined };
const COURSE = ['course', 'lab', 'lecturer'];

let shown: Shown = PLAIN;

async function main(): Promise<void> {
  readColours();
  const module = await WebAssembly.compile(await unpacked('engine'));
  const lab = await Lab.open(module);
  const kept = new Kept();
  const root = $('main');
  document.querySelector<HTMLAnchorElement>('.home')!.href = link('start');

  const open = async () => {
    const route = here();
    shown.leave();
    shown = PLAIN;
    const about = lab.demos.find(({ name }) => name === route.values.get('name'));
    const scripted = SCRIPTED.find(({ name }) => name === route.values.get('name'));
    const seed = route.values.get('seed');
    const wrong = seed !== null && COURSE.includes(route.page) ? kept.take(seed) : '';
    const asked = route.page === 'lab' && !wrong ? lab.course(kept.seed).find(({ name }) => name === route.values.get('name')) : undefined;
    nav(`index.html${link(COURSE.includes(route.page) ? 'course' : route.page)}`);
    if (route.page === 'demo' && about) shown = showDemo(root, lab, about, route);
    else if (route.page === 'machine' && scripted) shown = await showMachine(root, module, scripted, route);
    else if (route.page === 'race') shown = showRace(root, lab, route);
    else if (route.page === 'latency') shown = showLatency(root, JSON.parse($('latency').textContent), route);
    else if (asked) shown = showLab(root, module, lab, kept, asked);
    else if (route.page === 'lecturer') showLecturer(root, lab.course(kept.seed));
    else if (COURSE.includes(route.page)) shown = showCourse(root, lab, kept, wrong);
    else if (route.page === 'designs') designs(root);
    else if (route.page === 'words') words(root);
    else start(root, lab);
    document.title = `uslab: ${root.querySelector('h2')?.textContent}`;
    scrollTo(0, 0);
  };
  addEventListener('hashchange', () => void open());
  addEventListener('keydown', (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || (target instanceof Element && target.matches('input, select, textarea'))) return;
    if (key === ' ' && target instanceof Element && target.matches('button, a, summary')) return;
    if (shown.key(key)) event.preventDefault();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readColours();
    void open();
  });
  await open();
}

const card = (href: string, title: string, text: string): HTMLElement => made('a', { className: 'card', href }, made('h3', {}, title), made('p', {}, text));

function start(root: HTMLElement, lab: Lab): void {
  const comparisons = ['layout'];
  const cards = (own: (name: string) => boolean) => lab.demos.filter(({ name }) => own(name)).map(({ name, title, what }) => card(link('demo', { name }), title, what));
  root.replaceChildren(
    made('section', {}, made('h2', {}, 'The slab allocator'), made('p', { className: 'what' },
      'A slab allocator hands out objects of one size each from slabs: blocks of pages that are cut into such objects. A freed object is the next to be handed out, without a search and nearly without waste. ',
      'uslab is one in userspace, built as Linux builds its own. It is compiled into this page: what you see is what it does, not a recording. ',
      'Begin with ', made('a', { href: link('machine', { name: 'magazines' }) }, 'magazines on four CPUs'), ': press play, or jump to a depot visit. The ', made('a', { href: link('words') }, 'glossary'), ' explains the words.'),
      made('div', { className: 'cards' }, ...[...SCRIPTED].reverse().map(({ name, title, what }) => card(link('machine', { name }), title, what)),
        card('story.html', 'A race that loom found', 'A magazine layer with a planted bug, and the order of two threads\' steps that breaks it, as the model checker loom found it: step by step.'),
        card(link('course'), 'Course', `${lab.course(1).length} labs on this allocator, a quarter of an hour to an hour and a half each. Predict what it will do, and see what it did; or write a part of it yourself.`),
        card('replay.html', 'A kernel\'s trace', 'Every allocation and free of a Linux kernel under a file workload, forward and back. Compare it with another design, such as Linux\'s SLUB.'))),
    made('section', {}, made('h2', {}, 'Textbook allocators'), made('p', { className: 'what' }, 'Each one runs uslab\'s own code on a small memory. Play its script, then type any size.'),
      made('div', { className: 'cards' }, ...cards((name) => !comparisons.includes(name)))),
    made('section', {}, made('h2', {}, 'Comparisons'), made('div', { className: 'cards' }, ...cards((name) => comparisons.includes(name)),
        card(link('race'), 'Fragmentation race', 'The same requests to four allocators: who keeps the free memory in few pieces, and who has to refuse a block?'),
        card('scale.html', 'Scaling', 'Designs on 1 to 64 CPUs in virtual time: throughput, waiting for locks, and cache lines that travel. For another machine: uslab scale --html FILE.'),
        card(link('latency'), 'How long allocations take', 'Every allocation of four allocators, by its time: the median says little of the slowest. Recorded natively.'))),
  );
}

function designs(root: HTMLElement): void {
  root.replaceChildren(made('section', {}, made('h2', {}, 'Designs'),
    made('p', { className: 'what' }, 'These designs all serve the same operations. Only the first is an allocator; the others are models of policies, judged by the tables of the kernels that have them.'),
    made('dl', { className: 'words' }, ...DESIGNS.flatMap(([name, about, knobs]) => [made('dt', {}, name), made('dd', {}, about[0]!.toUpperCase(), about.slice(1), '. ',
      made('a', { href: link('machine', { name: 'magazines', design: name }) }, 'See it on four CPUs'), ', or ',
      made('a', { href: `replay.html#design=${name}` }, 'on a kernel\'s trace'), '.',
      ...(knobs.length ? [made('ul', { className: 'knobs' }, ...knobs.map(([knob, means]) => made('li', {}, made('code', {}, `${name}:${knob}=N`), ` ${means}`)))] : []))]))));
}

function words(root: HTMLElement): void {
  root.replaceChildren(made('section', {}, made('h2', {}, 'Glossary'),
    made('dl', { className: 'words' }, ...WORDS.flatMap(([word, means]) => [made('dt', {}, word), made('dd', {}, means)]))));
}

const ready = main();
ready.catch((error: unknown) => $('main').replaceChildren(made('p', { className: 'problem', role: 'alert' }, `The page does not start: ${error instanceof Error ? error.message : error}`)));

/** For tests and consoles. */
Object.assign(window, { uslab: { ready, view: () => shown.view() } });
