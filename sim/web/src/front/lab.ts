// A lab of the course: questions to predict the answers of, or code to write.

import { grouped, made } from '../draw.ts';
import type { Answer, Code, Expects, Lab as CourseLab, Question } from '../course.ts';
import type { Lab } from '../engine.ts';
import { DESIGNS } from '../views.ts';
import type { Shown } from './demo.ts';
import { type Kept, whole } from './kept.ts';
import { memory } from './memory.ts';
import { legend, Picture, recorded, told } from './moments.ts';
import { link } from './route.ts';
import { download } from './save.ts';
import { Stepper } from './stepper.ts';

/** Milliseconds that a moment stays where nothing moves. */
const STILL = 400;
/** The lab whose questions are about story.html. */
const RACE = 'race';

/** A run on the page. */
interface Run {
  root: HTMLElement;
  stepper: Stepper;
  key(key: string): boolean;
  redraw(): void;
  view(): unknown;
}

export function showLab(root: HTMLElement, wasm: WebAssembly.Module, engine: Lab, kept: Kept, own: CourseLab): Shown {
  const runs: Run[] = [];
  let current: Run | null = null;
  const questions = 'questions' in own.work ? own.work.questions : [];

  function ask(question: Question, n: number): HTMLElement {
    const name = `Question ${n + 1}`;
    const head = made('h3', { tabIndex: -1 }, name, made('span', { className: 'quiet' }, `of ${questions.length}`));
    const problem = made('p', { className: 'problem', role: 'alert' });
    const field = answerField(question.expects, name);
    const button = made('button', { className: 'main' }, 'predict');
    const fields = made('fieldset', { ariaLabel: name }, ...field.parts, button);
    const verdict = made('div', { className: 'verdict' }), place = made('div');
    verdict.setAttribute('aria-live', 'polite');

    const reveal = (predicted: number) => {
      fields.disabled = button.hidden = true;
      field.show(predicted);
      problem.textContent = '';
      const answer = engine.answer(kept.seed, own.name, n);
      verdict.replaceChildren(...verdictOn(question.expects, predicted, answer), ...strips(answer));
      if (own.name === RACE && answer.at) verdict.append(made('p', {}, storyLink(`Step ${answer.at} of the story`, answer.at)));
      if (question.script) runOf(wasm, question, answer, `Operations of question ${n + 1}`).then((run) => {
        runs.push(run);
        for (const event of ['focusin', 'pointerdown']) place.addEventListener(event, () => (current = run));
        place.replaceChildren(run.root);
        current = run;
        run.stepper.go(answer.at);
      }).catch((error: unknown) => (problem.textContent = `The run: ${error instanceof Error ? error.message : error}`));
    };
    const form = made('form', { noValidate: true, onsubmit: (event) => {
      event.preventDefault();
      const predicted = field.value();
      if (predicted === null) {
        problem.textContent = field.expected;
        return;
      }
      head.focus({ preventScroll: true }); // what has it will be disabled
      reveal(kept.predict(own.name, n, predicted));
    } }, fields);
    const predicted = kept.of(own.name)[n] ?? null;
    if (predicted !== null) reveal(predicted);
    const asked = [head, made('p', { className: 'what' }, question.text), ...(own.name === RACE ? [made('p', {}, storyLink('The story, step by step', 0))] : []), form, problem, verdict];
    return made('section', { className: 'question', ariaLabel: name },
      ...(question.script ? [made('div', { className: 'two' }, made('div', {}, ...asked), scriptOf(question))] : asked), place);
  }

  root.replaceChildren(
    made('section', {}, made('h2', {}, own.title), made('p', { className: 'what' }, own.about),
      made('p', { className: 'quiet' }, made('a', { href: link('course') }, 'all labs'), ` · about ${own.minutes} minutes`,
        ...(questions.length ? [` · seed ${kept.seed} · Predict first: a prediction is not changed any more, and then the answer is shown.`] : []))),
    ...questions.map(ask),
    ...('code' in own.work ? [codeOf(own.name, own.work.code)] : []),
    ...(questions.some(({ script }) => script) ? [legend(false)] : []));
  history.replaceState(null, '', link('lab', { name: own.name, seed: String(kept.seed) }));
  return {
    view: () => ({ lab: own.name, seed: kept.seed, predicted: kept.of(own.name), runs: runs.map((run) => run.view()) }),
    key: (key) => current?.key(key) ?? false,
    leave: () => runs.forEach(({ stepper }) => stepper.stop()),
    redraw: () => runs.forEach((run) => run.redraw()),
  };
}

/** What a prediction is typed or chosen in. */
function answerField(expects: Expects, name: string) {
  if ('number' in expects) {
    const input = made('input', { inputMode: 'numeric', size: 9, autocomplete: 'off', ariaLabel: `${name}: ${expects.number}` });
    return {
      parts: [made('label', {}, `${expects.number} `, input)],
      expected: 'Expected a whole number: digits, with or without commas between thousands.',
      value: () => whole(input.value),
      show: (value: number) => (input.value = String(value)),
    };
  }
  const inputs = expects.choice.map((_, i) => made('input', { type: 'radio', name, value: String(i) }));
  return {
    parts: [made('div', { className: 'choices' }, ...expects.choice.map((text, i) => made('label', {}, inputs[i]!, ` ${text}`)))],
    expected: 'Expected one of these to be chosen.',
    value: () => {
      const chosen = inputs.findIndex(({ checked }) => checked);
      return chosen < 0 ? null : chosen;
    },
    show: (value: number) => {
      if (inputs[value]) inputs[value].checked = true;
    },
  };
}

function verdictOn(expects: Expects, predicted: number, { right, why }: Answer): HTMLElement[] {
  const said = (value: number) => ('number' in expects ? `${grouped(value)} (${expects.number})` : `“${expects.choice[value]}”`);
  const fine = predicted === right;
  return [made('p', { className: fine ? 'right' : 'wrong' }, made('b', {}, fine ? '✓ Right' : '✗ Not right'),
    fine ? `: ${said(right)}.` : `. You predicted ${said(predicted)}; it is ${said(right)}.`), made('p', { className: 'what' }, why)];
}

/** Memory to look at, where no script runs. */
function strips({ strips = [] }: Answer): HTMLElement[] {
  return strips.map(({ said, pieces }) => {
    let at = 0;
    const parts = pieces.map(([bytes, block]) => ({ at: (at += bytes) - bytes, bytes, ...(block === null ? { is: 'padding' as const } : { is: 'used' as const, block }) }));
    const nothing = { count: 0, largest: 0, total: 0 };
    return made('div', { className: 'strip' }, made('h4', {}, said), memory({ said, refused: false, parts, holes: nothing, structure: null, facts: [] }, 1));
  });
}

const storyLink = (text: string, step: number): HTMLElement =>
  made('a', { href: `story.html${step ? `#step=${step}` : ''}`, target: '_blank' }, text);

function scriptOf({ design, script }: Question): HTMLElement {
  const [name, ...set] = design.split(':');
  const [, about, knobs] = DESIGNS.find(([own]) => own === name) ?? [];
  const means = (knob: string) => knobs?.find(([own]) => own === knob.split('=')[0])?.[1] ?? '';
  return made('div', { className: 'script' }, made('p', { className: 'quiet' }, 'What runs, on ', made('code', {}, design), about ? `, ${about}` : '', ':'),
    ...(set.length ? [made('ul', { className: 'knobs quiet' }, ...set.map((knob) => made('li', {}, made('code', {}, knob), ` ${means(knob)}`)))] : []),
    made('pre', { tabIndex: 0, ariaLabel: 'The script' }, script));
}

async function runOf(wasm: WebAssembly.Module, { design, script }: Question, answer: Answer, what: string): Promise<Run> {
  const recording = await recorded(wasm, script, design), { about, views } = recording;
  const said = made('p', { className: 'said' });
  said.setAttribute('aria-live', 'polite');
  let moves = 0;
  const picture = new Picture(recording);
  const stepper = new Stepper(what, views.length - 1, (at, on) => {
    said.replaceChildren(...told(views[at]!, about.marks, views.length - 1), ...(at ? [] : ['Nothing has happened yet.']));
    moves = picture.show(at, on);
  }, () => (moves || STILL) + 100);
  const slow = () => {
    const next = views.findIndex(({ steps }, at) => at > stepper.at && steps.some(({ path }) => path && path !== 'cpu'));
    if (next > 0) stepper.go(next);
  };
  const does = (text: string, title: string, onclick: () => void) => made('button', { type: 'button', title, onclick }, text);
  const byHand = { name: 'magazines', design, do: script.split('\n').join(';'), at: String(answer.at) };
  const root = made('div', { className: 'run' }, made('h4', {}, 'The run, operation by operation'), stepper.root,
    made('div', { className: 'bar' }, does(`operation ${answer.at}`, 'Where the answer is seen (a)', () => stepper.go(answer.at)),
      does('next slow path', 'To the next operation that leaves its CPU: depot, slabs or pages (n)', slow),
      ...(about.caches.length ? [made('a', { href: link('machine', byHand) }, 'the same machine by hand')] : [])),
    said, picture.root);
  return {
    root, stepper,
    key: (key) => {
      if (key === 'a') stepper.go(answer.at);
      else if (key === 'n') slow();
      else return stepper.key(key);
      return true;
    },
    redraw: () => picture.stage?.redraw(),
    view: () => ({ at: stepper.at, view: views[stepper.at] }),
  };
}

function codeOf(name: string, { starter, judged_by }: Code): HTMLElement {
  const file = `${name}.rs`;
  return made('section', {}, made('h3', {}, 'To write'), made('p', {}, 'A file in Rust, which begins as below. It is judged by this:'),
    made('ul', {}, ...judged_by.map((text) => made('li', {}, text))),
    made('div', { className: 'bar' }, made('button', { type: 'button', className: 'main', onclick: () => download(file, starter) }, `save ${file}`),
      made('span', { className: 'copy' }, made('span', { className: 'quiet' }, 'to grade it: '), made('code', {}, `uslab course grade ${file}`))),
    made('pre', { tabIndex: 0, ariaLabel: 'The file to begin with', className: 'starter' }, starter));
}
