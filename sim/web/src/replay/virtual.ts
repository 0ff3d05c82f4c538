// What whole runs cost in virtual time, as a table: computed when somebody opens it.

import { $ } from '../draw.ts';
import { scaling } from './link.ts';
import { MEASURES, said } from '../scale/measures.ts';
import { table } from '../twin.ts';
import type { Run } from './run.ts';

export class Virtual {
  private readonly details = $<HTMLDetailsElement>('virtual');
  private readonly profile = $<HTMLSelectElement>('profile');
  private runs: readonly Run[] = [];
  /** What is shown, or on its way. */
  private key = '';

  constructor(profiles: readonly string[]) {
    this.profile.append(...profiles.map((name) => new Option(name)));
    this.details.addEventListener('toggle', () => this.draw());
    this.profile.onchange = () => this.draw();
  }

  take(runs: readonly Run[]): void {
    this.runs = runs;
    this.draw();
  }

  private draw(): void {
    const { runs, profile: { value: profile } } = this;
    const key = [profile, ...runs.map(({ name }) => name)].join('\n');
    if (!this.details.open || key === this.key) return;
    this.key = key;
    const show = (...shown: (Node | string)[]) => {
      if (key === this.key) $('virtual-table').replaceChildren(...shown);
    };
    $('virtual-command').textContent = scaling(runs.map(({ choice: { design }, about: { cpus } }) => ({ design, cpus })), profile);
    show('The engine runs the trace in virtual time.');
    Promise.all(runs.map((run) => run.costs(profile))).then(
      (outcomes) => show(table(`Predicted at the prices of ${profile}`, ['', ...runs.map(({ name }) => name)],
        MEASURES.filter(({ key }) => key !== 'speed-up' && key !== 'container').map(({ name, unit, of }) =>
          [unit === name ? name : `${name}, ${unit}`, ...outcomes.map((outcome) => said(of(outcome, outcome)))]))),
      (error: unknown) => show(error instanceof Error ? error.message : String(error)),
    );
  }
}
