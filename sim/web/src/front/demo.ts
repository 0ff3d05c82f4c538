// An allocator of the lab that is driven by hand.

import { grouped, made, noun } from '../draw.ts';
import type { Lab } from '../engine.ts';
import type { About, Part, Scene } from '../scenes.ts';
import { seedOf } from './kept.ts';
import { legend, partsTable } from './memory.ts';
import { link, type Route } from './route.ts';
import { namesIn } from './shapes/ink.ts';
import { lanesLegend } from './shapes/lanes.ts';
import { midway } from './shapes/midway.ts';
import { picture as drawn } from './shapes/shape.ts';
import type { Stage } from '../stage/stage.ts';
import { Stepper } from './stepper.ts';

/** What is on the screen. */
export interface Shown {
  /** For tests. */
  view(): unknown;
  key(key: string, event: KeyboardEvent): boolean;
  leave(): void;
  /** The colours changed; without it the page is opened anew. */
  redraw?(): void;
  stage?(): Stage | null;
}

/** Milliseconds that a step of a command is shown, and its outcome after the last one. */
const STEP = 900, OUTCOME = 1500;
/** What a colour means in a demo, unless it means what it does in the others. */
const OWN: Partial<Record<About['name'], Partial<Record<Part['is'], string>>>> = {
  layout: { used: 'loaded and used', free: 'not loaded' }, arena: { untouched: 'no chunk yet' }, 'reserved-pool': { untouched: 'reserved, not committed' },
};
/** The answers to claims. */
const ANSWERS: Record<string, string> = { holds: 'It holds.', depends: 'It depends.', 'does not hold': 'It does not hold.' };
/** The number of commands of a random script. */
const RANDOM = 12;

/** The names of the handles that were returned so far. */
const handlesIn = ({ structure }: Scene): string[] => (structure && 'handles' in structure.shape ? structure.shape.handles.map(({ name }) => name) : []);

export function showDemo(root: HTMLElement, lab: Lab, about: About, { values }: Route): Shown {
  const given = values.get('do');
  let commands: string[] = given === null ? [...about.script] : given.split(';').filter(Boolean);
  let scenes = lab.play(about.name, commands);
  const said = made('p', { className: 'said told' });
  said.setAttribute('aria-live', 'polite');
  const picture = made('div'), kinds = made('div'), facts = made('dl', { className: 'facts' }), when = made('h3'), took = made('ol', { className: 'took' });
  const steps = made('ol', { className: 'steps', ariaLabel: 'Steps of the command' });
  const inWords = made('pre', { tabIndex: 0, ariaLabel: 'The data structure as text' });
  const twin = made('details', {}, made('summary', {}, 'The data structure as text, and the memory as a table'), inWords, made('div', { className: 'scroll' }));
  const controls = made('div', { className: 'bar commands' });
  const line = made('code');
  /** The number of steps of the command that are shown. */
  let done = 0, timer = 0;
  const stepsOf = (at: number) => scenes[at]!.structure?.steps ?? [];
  const still = matchMedia('(prefers-reduced-motion: reduce)');
  const stepper = new Stepper('Commands', commands.length, (at, on) => {
    inside.stop();
    done = stepsOf(at).length;
    if (on) play();
    draw();
  }, () => (still.matches ? STEP : (stepsOf(stepper.at).length - done) * STEP) + OUTCOME);
  const inside = {
    get plays() {
      return timer !== 0;
    },
    stop() {
      clearTimeout(timer);
      timer = 0;
    },
    resume() {
      if (still.matches || done >= stepsOf(stepper.at).length) return false;
      next();
      return true;
    },
  };
  stepper.inside = inside;

  /** Shows the state before the command, and then its steps one after the other. */
  function play(): void {
    inside.stop();
    if (still.matches || !stepsOf(stepper.at).length) return;
    done = 0;
    timer = setTimeout(next, STEP);
  }
  function next(): void {
    showStep(done + 1);
    timer = done < stepsOf(stepper.at).length ? setTimeout(next, STEP) : 0;
    stepper.draw();
  }
  function showStep(step: number): void {
    done = step;
    drawSteps();
  }

  /** Runs the command after the current one; later commands are dropped. */
  const act = (command: string) => {
    commands = [...commands.slice(0, stepper.at), command];
    scenes = lab.play(about.name, commands);
    stepper.set(commands.length, commands.length);
    play();
    draw();
    stepper.draw();
  };
  const begin = (fresh: readonly string[]) => {
    commands = [...fresh];
    scenes = lab.play(about.name, commands);
    stepper.set(commands.length, 0);
  };

  function draw(): void {
    const scene = scenes[stepper.at]!;
    drawSteps();
    const shape = scene.structure?.shape;
    kinds.replaceChildren(shape?.is === 'lanes' ? lanesLegend(shape) : legend([...beforeOf().parts, ...scene.parts].filter(({ is }) => shape?.is !== 'chunks' || is === 'used' || is === 'free'), OWN[about.name]));
    took.replaceChildren(...commands.map((own, i) => {
      const step = made('button', { type: 'button', onclick: () => stepper.go(i + 1) }, own);
      if (i + 1 === stepper.at) step.setAttribute('aria-current', 'step');
      return made('li', { className: scenes[i + 1]!.refused ? 'refused' : '' }, step);
    }));
    drawControls(scene);
    line.textContent = ['uslab lab demo', about.name, ...commands.slice(0, stepper.at).map((own) => `'${own}'`)].join(' ');
    const changed = commands.join(';') !== about.script.join(';');
    history.replaceState(null, '', link('demo', { name: about.name, ...(changed && { do: commands.join(';') }), at: String(stepper.at) }));
  }

  const beforeOf = (): Scene => scenes[Math.max(stepper.at - 1, 0)]!;

  /** Draws what changes with a step. */
  function drawSteps(): void {
    const scene = scenes[stepper.at]!, all = stepsOf(stepper.at), before = beforeOf(), command = commands[stepper.at - 1], ended = done >= all.length;
    const { holes, facts: figures, structure, parts } = midway(before, scene, done);
    const sentence = ended ? scene.said || 'No command has run yet. Play the script, or run a command.' : all[done - 1]?.said ?? '';
    said.replaceChildren(...(command ? [made('code', { className: ended && scene.refused ? 'refused' : '' }, command), ' '] : []), sentence);
    const free: [string, string][] = holes.total ? [['free', `${grouped(holes.total)} bytes in ${noun(holes.count, 'piece')}, the largest ${grouped(holes.largest)}`]] : [];
    const known = [...free, ...figures];
    // In the midst of a command the figures are from before it, except the ones that a step has changed.
    when.textContent = !command || !known.length ? '' : !ended && holes === before.holes && figures === before.facts ? 'Before the command' : 'After the command';
    facts.replaceChildren(...known.flatMap(([name, value]) => [made('dt', {}, name), made('dd', {}, value)]));
    inWords.textContent = structure?.text.join('\n') ?? '';
    twin.lastElementChild!.replaceChildren(...(parts.length ? [partsTable(parts)] : []));
    picture.replaceChildren(drawn({
      scene, done, before,
      pick: about.takes.some((takes) => /^free [A-Z]/.test(takes)) ? (block) => act(`free ${block}`) : undefined,
    }));
    const focus = steps.contains(document.activeElement);
    steps.replaceChildren(...all.map(({ said }, i) => {
      const step = made('button', { type: 'button', onclick: () => {
        stepper.stop();
        showStep(i + 1);
      } }, said);
      if (i + 1 === done) step.setAttribute('aria-current', 'step');
      return made('li', { className: i < done ? '' : 'later' }, step);
    }));
    if (focus) steps.querySelector<HTMLElement>('[aria-current]')?.focus();
  }

  function drawControls(scene: Scene): void {
    // Fields keep what was typed.
    const typed = [...controls.querySelectorAll<HTMLInputElement | HTMLSelectElement>('input, select')].map(({ value }) => value);
    const focus = document.activeElement instanceof HTMLElement && controls.contains(document.activeElement) ? document.activeElement.dataset['does'] : undefined;
    controls.replaceChildren(...about.takes.map((takes) => control(takes, scene)));
    controls.querySelectorAll<HTMLInputElement | HTMLSelectElement>('input, select').forEach((field, i) => (field.value = typed[i] ?? field.value));
    if (focus) controls.querySelector<HTMLElement>(`[data-does="${focus}"]`)?.focus();
  }

  function control(takes: string, scene: Scene): HTMLElement {
    const [verb, ...wants] = takes.split(' ') as [string, ...string[]];
    const does = (label: string, act: () => void) => {
      const button = made('button', { type: 'button', onclick: act }, label);
      button.dataset['does'] = label;
      return button;
    };
    const group = (...parts: Node[]) => {
      const own = made('div', { className: 'buttons', role: 'group' }, ...parts);
      own.setAttribute('aria-label', verb);
      return own;
    };
    const many = (names: readonly string[]) => group(...names.map((name) => does(`${verb} ${name}`, () => act(`${verb} ${name}`))));
    switch (wants[0]) {
      case undefined: return does(verb, () => act(verb));
      case 'BYTES': {
        const bytes = made('input', { inputMode: 'numeric', size: 6, value: '100', ariaLabel: 'Bytes' });
        const align = made('select', { ariaLabel: 'Alignment' }, ...[1, 2, 4, 8, 16, 32, 64].map((n) => made('option', { value: String(n) }, String(n))));
        const go = () => act(`alloc ${bytes.value.trim()}${align.value === '1' ? '' : ` ${align.value}`}`);
        bytes.onkeydown = ({ key }) => { if (key === 'Enter') go(); };
        bytes.dataset['does'] = 'bytes';
        return group(does('alloc', go), made('label', {}, bytes, ' bytes'), ...(wants[1] ? [made('label', {}, 'aligned to ', align)] : []));
      }
      case 'MARKER': return many(commands.slice(0, stepper.at).filter((own) => own === 'mark').map((_, i) => `m${i + 1}`));
      case 'HANDLE': return many(handlesIn(scene));
      case 'BLOCK': return many(namesIn(scene));
      default: {
        if (wants.length === 1 && !wants[0].includes('|')) return does(takes, () => act(takes));
        const selects = wants.map((choices) => made('select', { ariaLabel: choices.replaceAll('|', ', ') }, ...choices.split('|').map((choice) => made('option', { value: choice }, choice))));
        return group(does(verb, () => act([verb, ...selects.map(({ value }) => value)].join(' '))), ...selects);
      }
    }
  }

  const seed = made('input', { inputMode: 'numeric', size: 6, value: '7', ariaLabel: 'Seed' }), problem = made('p', { className: 'problem', role: 'alert' });
  const random = () => {
    const wanted = seedOf(seed.value);
    problem.textContent = typeof wanted === 'number' ? '' : wanted;
    if (typeof wanted === 'number') begin(lab.script(about.name, wanted, RANDOM));
  };
  seed.onkeydown = ({ key }) => { if (key === 'Enter') random(); };
  root.replaceChildren(made('section', {}, made('h2', {}, about.title), made('p', { className: 'what' }, about.what),
    made('p', { className: 'claim' }, made('span', { className: 'quiet' }, 'A text on allocators says: '), `“${about.claim.says}.” `, made('b', {}, ANSWERS[about.claim.answer] ?? about.claim.answer), made('span', { className: 'quiet' }, ` (${about.claim.number} in STUDY.md)`)),
    stepper.root, said, made('div', { className: 'staged' }, made('div', {}, picture, kinds), steps), controls,
    made('div', { className: 'bar' }, does('the script from its beginning', () => begin(about.script)), does('random script', random), made('label', {}, 'seed ', seed), does('clear', () => begin([])),
      made('span', { className: 'copy' }, made('span', { className: 'quiet' }, 'in a terminal: '), line)), problem,
    made('div', { className: 'two' }, made('div', {}, when, facts), made('div', {}, made('h3', {}, 'Commands'), took)), twin));
  const at = values.get('at');
  stepper.go(at !== null ? Number(at) || 0 : given === null ? about.telling : commands.length);
  if (at === null) {
    play();
    draw();
    // A program on several allocators plays on to the end of its script.
    if (!still.matches && scenes[stepper.at]!.structure?.shape.is === 'lanes') {
      clearTimeout(timer);
      timer = setTimeout(() => stepper.play(), STEP);
    }
    stepper.draw();
  }
  return {
    view: () => ({ command: commands[stepper.at - 1] ?? null, scene: scenes[stepper.at] }), key: (key) => stepper.key(key),
    leave: () => stepper.stop(),
  };

  function does(label: string, act: () => void): HTMLButtonElement {
    return made('button', { type: 'button', onclick: act }, label);
  }
}
