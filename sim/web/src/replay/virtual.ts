// What whole runs cost in virtual time: computed when two of them are side by side, or when the table is opened.

import { $ } from '../draw.ts';
import { scaling } from './link.ts';
import { MEASURES, said } from '../scale/measures.ts';
import type { Outcome } from '../scale/outcome.ts';
import { table } from '../twin.ts';
import type { Run } from './run.ts';

export class Virtual {
  private readonly details = $<HTMLDetailsElement>('virtual');
  private readonly profile = $<HTMLSelectElement>('profile');
  private runs: readonly Run[] = [];
  /** What is shown, or on its way. */
  private key = '';
  private outcomes: readonly Outcome[] = [];

  /** `told` hears the outcome of each run. */
  constructor(profiles: readonly string[], private readonly told: (outcomes: readonly Outcome[]) => void) {
    this.profile.append(...profiles.map((name) => new Option(name)));
    this.details.addEventListener('toggle', () => this.draw());
    this.profile.onchange = () => this.draw();
  }

  take(runs: readonly Run[]): void {
    this.runs = runs;
    this.draw();
  }

  private get asked(): string {
    return [this.profile.value, ...this.runs.map(({ name }) => name)].join('\n');
  }

  private draw(): void {
    const { runs, asked: key, profile: { value: profile } } = this;
    if (key === this.key) this.told(this.outcomes);
    if (key === this.key || !this.details.open && runs.length < 2) return;
    [this.key, this.outcomes] = [key, []];
    const show = (...shown: (Node | string)[]) => {
      if (key === this.key) $('virtual-table').replaceChildren(...shown);
    };
    $('virtual-command').textContent = scaling(runs.map(({ choice: { design }, about: { cpus } }) => ({ design, cpus })), profile);
    show('The engine runs the trace in virtual time.');
    Promise.all(runs.map((run) => run.costs(profile))).then(
      (outcomes) => {
        if (key !== this.key) return;
        this.outcomes = outcomes;
        if (key === this.asked) this.told(outcomes);
        const shown = MEASURES.filter(({ key }) => key !== 'speed-up' && key !== 'container');
        show(table(`Predicted at the prices of ${profile}`, ['', ...runs.map(({ name }) => name)], shown.map(({ name, unit, of }) => [unit === name ? name : `${name}, ${unit}`, ...outcomes.map((outcome) => said(of(outcome, outcome)))])));
      },
      (error: unknown) => show(error instanceof Error ? error.message : String(error)),
    );
  }
}
