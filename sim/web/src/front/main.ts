// The front page: the allocator at work, demos, the course, designs and words.

import '../page.css';
import './front.css';
import { unpacked } from '../carried.ts';
import { $, made, readColours } from '../draw.ts';
import { Lab } from '../engine.ts';
import { DESIGNS } from '../views.ts';
import { showCompare } from './compare.ts';
import { showCourse, showLecturer } from './course.ts';
import { showDemo, type Shown } from './demo.ts';
import { Kept } from './kept.ts';
import { showLab } from './lab.ts';
import { showLatency } from './latency.ts';
import { SCRIPTED, showMachine } from './machines.ts';
import { nav } from '../nav.ts';
import { showPlay } from './play.ts';
import { showRace } from './race.ts';
import { here, link } from './route.ts';
import { showStart } from './start.ts';
import { WORDS } from './words.ts';

const PLAIN: Shown = { view: () => null, key: () => false, leave: () => undefined };
const COURSE = ['course', 'lab', 'lecturer'], PLAY = ['play', 'demo', 'machine', 'race', 'latency'];

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
    nav(`index.html${link(COURSE.includes(route.page) ? 'course' : PLAY.includes(route.page) ? 'play' : route.page)}`);
    root.style.setProperty('--top', `${root.offsetTop}px`);
    if (route.page === 'demo' && about) shown = showDemo(root, lab, about, route);
    else if (route.page === 'machine' && scripted) shown = await showMachine(root, module, scripted, route);
    else if (route.page === 'compare') shown = await showCompare(root, module, route);
    else if (route.page === 'race') shown = showRace(root, lab, route);
    else if (route.page === 'latency') shown = showLatency(root, JSON.parse($('latency').textContent), route);
    else if (asked) shown = showLab(root, module, lab, kept, asked);
    else if (route.page === 'lecturer') showLecturer(root, lab.course(kept.seed));
    else if (COURSE.includes(route.page)) shown = showCourse(root, lab, kept, wrong);
    else if (route.page === 'designs') designs(root);
    else if (route.page === 'words') words(root);
    else if (route.page === 'play') await showPlay(root, module, lab);
    else shown = await showStart(root, module, route);
    document.title = `uslab: ${root.querySelector('h2')?.textContent}`;
    scrollTo(0, 0);
  };
  // One page opens at a time. If the address changes while a page opens, the page at the new address opens next.
  let opening: Promise<void> | null = null, wanted = '';
  const openWanted = async () => {
    for (let own = null; own !== wanted;) {
      own = wanted;
      if (location.hash !== own) history.replaceState(null, '', own);
      await open();
    }
  };
  const go = (hash = location.hash) => {
    wanted = hash;
    return opening ??= openWanted().finally(() => (opening = null));
  };
  // A page that plays may have written its own address again since the click.
  addEventListener('hashchange', ({ newURL }) => void go(new URL(newURL).hash));
  addEventListener('keydown', (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || (target instanceof Element && target.matches('input, select, textarea'))) return;
    if (key === ' ' && target instanceof Element && target.matches('button, a, summary')) return;
    if (shown.key(key, event)) event.preventDefault();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readColours();
    if (shown.redraw) shown.redraw();
    else void go();
  });
  await go();
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
Object.assign(window, { uslab: { ready, view: () => shown.view(), stage: () => shown.stage?.() ?? null } });
