// Who takes the course, and what was predicted: the browser keeps it, if it does that for a page from disk, or this page as long as it is open.

import type { Expects, Lab, Sheet } from '../course.ts';

type Answers = Sheet['answers'];

/** The course's version, as `Sheet::COURSE` has it. */
const COURSE = 1;
const PLACE = 'uslab course', LAST_SEED = 2 ** 32 - 1;

/** A whole number without more signs than commas between thousands. */
export function whole(text: string): number | null {
  const n = /^(\d+|\d{1,3}(,\d{3})+)$/.test(text.trim()) ? Number(text.replaceAll(',', '')) : NaN;
  return Number.isSafeInteger(n) ? n : null;
}

/** A seed, or what is wrong with it. */
export function seedOf(text: string): number | string {
  const seed = whole(text);
  return seed !== null && seed <= LAST_SEED ? seed : `The seed ${text}: expected a whole number from 0 to ${LAST_SEED}.`;
}

export class Kept {
  name = '';
  seed = 1;
  /** Whether it is still there when this page is closed. */
  lasts = true;
  /** By seed, which makes the questions. */
  private predictions: Record<string, Answers> = {};

  constructor() {
    const { name = '', seed = 1 } = this.load();
    Object.assign(this, { name, seed });
  }
  /** Another page of this browser may have gone on with it. */
  private load(): { name?: string; seed?: number } {
    try {
      const found = JSON.parse(localStorage.getItem(PLACE) ?? '{}');
      this.predictions = found.predictions ?? this.predictions;
      return found;
    } catch {
      this.lasts = false;
      return {};
    }
  }
  private keep(change: () => void): void {
    this.load();
    change();
    const { name, seed, predictions } = this;
    try {
      localStorage.setItem(PLACE, JSON.stringify({ name, seed, predictions }));
    } catch {
      this.lasts = false;
    }
  }

  call(name: string): void {
    this.keep(() => (this.name = name.trim()));
  }
  /** What is wrong with that seed; empty, and it is taken, if nothing is. */
  take(text: string): string {
    const seed = seedOf(text);
    if (typeof seed === 'string') return seed;
    this.keep(() => (this.seed = seed));
    return '';
  }

  /** The answers of a lab in order, as far as there are any. */
  of(lab: string): readonly (number | null)[] {
    this.load();
    return this.predictions[this.seed]?.[lab] ?? [];
  }
  /** What is predicted since: a prediction is not changed. */
  predict(lab: string, question: number, answer: number): number {
    this.keep(() => {
      const own = ((this.predictions[this.seed] ??= {})[lab] ??= []);
      while (own.length <= question) own.push(null);
      own[question] ??= answer;
    });
    return this.of(lab)[question] ?? answer;
  }

  sheet(): Sheet {
    this.load();
    return { course: COURSE, name: this.name, seed: this.seed, answers: this.predictions[this.seed] ?? {} };
  }
  /** Under which the sheet is saved; letters and digits of any script are fine in files. */
  get file(): string {
    const safe = this.name.replaceAll(/[^\p{L}\p{M}\p{N}]+/gu, '-').replaceAll(/^-|-$/g, '').slice(0, 60);
    return `answers-${safe || 'NAME'}.json`;
  }
  /** Takes a sheet in the place of what there is for its seed. Throws, and changes nothing, if it is none. */
  read(text: string, labs: (seed: number) => Lab[]): void {
    const { course, name, seed, answers } = parsed(text);
    if (course !== COURSE) throw new Error(`a sheet of version ${course} of the course; expected ${COURSE}`);
    if (typeof name !== 'string' || !Number.isInteger(seed) || seed < 0 || seed > LAST_SEED || !answers || typeof answers !== 'object' || Array.isArray(answers))
      throw new Error('no answer sheet: expected a name, a seed and answers');
    const own = labs(seed);
    for (const [lab, given] of Object.entries(answers)) {
      const work = own.find(({ name }) => name === lab)?.work;
      const questions = work && 'questions' in work ? work.questions : null;
      if (!questions) throw new Error(`no lab ${lab} has questions`);
      const fits = (answer: unknown, at: number) => answer === null || (Number.isSafeInteger(answer) && Number(answer) >= 0 && Number(answer) < choices(questions[at]!.expects));
      if (!Array.isArray(given) || given.length > questions.length || !given.every(fits))
        throw new Error(`lab ${lab}: expected at most ${questions.length} answers, whole numbers or null`);
    }
    this.keep(() => {
      this.predictions[seed] = answers;
      [this.name, this.seed] = [name.trim(), seed];
    });
  }
}

const choices = (expects: Expects): number => ('choice' in expects ? expects.choice.length : Infinity);

function parsed(text: string): Sheet {
  try {
    const sheet: unknown = JSON.parse(text);
    if (sheet && typeof sheet === 'object') return sheet as Sheet;
  } catch { /* said below */ }
  throw new Error('no answer sheet: expected JSON that this page saved');
}
