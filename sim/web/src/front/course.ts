// The course: its labs, the answer sheet, and a page for who teaches it.

import { made, noun, sum } from '../draw.ts';
import type { Lab as CourseLab } from '../course.ts';
import type { Lab } from '../engine.ts';
import type { Shown } from './demo.ts';
import type { Kept } from './kept.ts';
import { link } from './route.ts';
import { download } from './save.ts';

const questionsOf = ({ work }: CourseLab): number => ('questions' in work ? work.questions.length : 0);
const answered = (kept: Kept, { name }: CourseLab): number => kept.of(name).filter((answer) => answer !== null).length;
const minutesOf = (labs: readonly CourseLab[]): number => sum(labs.map(({ minutes }) => minutes));

export function showCourse(root: HTMLElement, lab: Lab, kept: Kept, wrong: string): Shown {
  const problem = made('p', { className: 'problem', role: 'alert' }, wrong);
  const name = made('input', { size: 24, maxLength: 100, autocomplete: 'name', value: kept.name });
  const seed = made('input', { inputMode: 'numeric', size: 11, autocomplete: 'off', value: String(kept.seed) });
  const file = made('input', { type: 'file', accept: '.json' });
  const cards = made('div', { className: 'cards' }), state = made('p'), command = made('code');

  const right = ({ name }: CourseLab): number =>
    kept.of(name).filter((answer, at) => answer !== null && lab.answer(kept.seed, name, at).right === answer).length;

  function draw(): void {
    const labs = lab.course(kept.seed);
    name.value = kept.name;
    seed.value = String(kept.seed);
    cards.replaceChildren(...labs.map((own) => {
      const of = questionsOf(own);
      return made('a', { className: 'card', href: link('lab', { name: own.name, seed: String(kept.seed) }) }, made('h3', {}, own.title),
        made('p', {}, own.about), made('p', { className: 'count' }, `${own.minutes} minutes · ${of ? `${answered(kept, own)} of ${of} answered, ${right(own)} right` : 'an exercise'}`));
    }));
    const [done, of] = [sum(labs.map((own) => answered(kept, own))), sum(labs.map(questionsOf))];
    state.textContent = `${done} of ${noun(of, 'question')} answered with seed ${kept.seed}, ${sum(labs.map(right))} of them right.` +
      (kept.lasts ? '' : ' This browser keeps nothing for a page from disk: save the sheet before you close the page.');
    command.textContent = `uslab course grade ${kept.file}`;
    history.replaceState(null, '', link('course', { seed: String(kept.seed) }));
  }

  name.onchange = () => {
    kept.call(name.value);
    problem.textContent = '';
    draw();
  };
  seed.onchange = () => {
    problem.textContent = kept.take(seed.value);
    draw();
  };
  file.onchange = async () => {
    const [chosen] = file.files ?? [];
    if (!chosen) return;
    try {
      kept.read(await chosen.text(), (seed) => lab.course(seed));
      problem.textContent = '';
    } catch (error) {
      problem.textContent = `${chosen.name}: ${error instanceof Error ? error.message : error}.`;
    }
    file.value = '';
    draw();
  };
  const save = () => {
    const sheet = kept.sheet();
    problem.textContent = !kept.name ? 'A sheet has a name on it: write yours first.' : Object.keys(sheet.answers).length ? '' : 'Nothing is answered yet.';
    if (!kept.name) name.focus();
    else if (!problem.textContent) download(kept.file, `${JSON.stringify(sheet, null, 2)}\n`);
  };

  root.replaceChildren(
    made('section', {}, made('h2', {}, 'Course'), made('p', { className: 'what' },
      'Labs on this allocator. Predict what it will do; then it runs here, in the page, and says what it did. The seed makes the numbers in the questions: take the one that you were given.'),
      made('div', { className: 'bar' }, made('label', {}, 'your name ', name), made('label', {}, 'seed ', seed)), problem, cards),
    made('section', {}, made('h3', {}, 'Answer sheet'), state,
      made('div', { className: 'bar' }, made('button', { type: 'button', className: 'main', onclick: save }, 'save the sheet'), made('label', {}, 'read a sheet back in ', file)),
      made('p', { className: 'copy' }, made('span', { className: 'quiet' }, 'to grade it: '), command)));
  draw();
  return { view: () => kept.sheet(), key: () => false, leave: () => undefined };
}

export function showLecturer(root: HTMLElement, labs: readonly CourseLab[]): void {
  const command = (text: string) => made('code', {}, text);
  root.replaceChildren(
    made('section', {}, made('h2', {}, 'For teachers'), made('p', { className: 'what' },
      `${noun(labs.length, 'lab')}, ${minutesOf(labs)} minutes in all. Each question is answered by the engine, which runs what the question is about; there is no list of answers. `,
      'Give each student a seed of their own: it makes the numbers in the questions, so that neighbours have different ones. ',
      command('uslab course answers --seed N'), ' prints them for a seed. ', made('span', { className: 'screen' }, 'This page prints well, and no other page leads to it. Students begin at ', made('a', { href: link('course') }, 'Course'), '.'))),
    ...labs.map((lab) => {
      const of = questionsOf(lab);
      return made('section', { className: 'taught' }, made('h3', {}, lab.title, made('span', { className: 'quiet' }, `${lab.minutes} minutes, ${of ? noun(of, 'question') : 'an exercise'}`)),
        made('p', { className: 'what' }, lab.about),
        made('dl', { className: 'words' }, made('dt', {}, 'shows'), made('dd', {}, lab.shows), made('dt', {}, 'commonly got wrong'), made('dd', {}, lab.pitfall)));
    }),
    made('section', {}, made('h3', {}, 'How sheets and exercises are graded'),
      made('p', { className: 'what' }, command('uslab course grade answers-NAME.json'), ' reads a sheet, with the seed that is in it, and says for each question what is right and why. ',
        'The exit code is 0 if all is right, 1 if it is not, and 2 if there is nothing to grade.'),
      made('p', { className: 'what' }, command('uslab course grade ann-merge.rs --seed N --html failure.html'), ' compiles a student\'s file and runs it on streams that your seed N makes, ',
        'and that the student has not seen. If it fails, the page shows the step at which it does. A student\'s file runs as a program of yours, with your rights: run it in a container, or on a machine to throw away.'),
      made('p', { className: 'what' }, 'A sheet is what its student says: see that it has the seed that you gave.')));
}
