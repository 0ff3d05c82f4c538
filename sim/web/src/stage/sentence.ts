// What the last operation did, in the stage's words.

import { grouped, noun } from '../draw.ts';
import type { Step, View } from '../views.ts';

/** The sentence below the stage. A model of another design has its own sentences. */
export function happened(view: View): string {
  const magazines = view.shown.some(({ cpus }) => cpus[0]?.[0]?.name === 'stack');
  return view.steps.map((step) => (magazines && step.path && step.cache !== null ? sentence(step, view) : step.what === 'shrink' ? shrunk(step) : step.sentence)).join(' ');
}

function sentence(step: Step, view: View): string {
  const { cpu, what, path, did } = step, cache = view.caches[step.cache!], level = view.shown.find((own) => own.cache === step.cache)?.cpus[cpu]?.[0];
  const object = `an object${view.caches.length > 1 && cache ? ` of ${cache.name}` : ''}`, mapped = path === 'commit' ? ' The system maps memory for it.' : '';
  const event = (begins: string) => did.some((text) => text.startsWith(begins));
  if (what === 'alloc') {
    const allocates = `CPU ${cpu} allocates ${object}`, kept = level?.objects ?? 0, batch = level ? noun(kept + 1, 'pointer') : 'pointers', split = kept ? `: one for the program, ${grouped(kept)} for its magazine` : '', pages = 1 << (cache?.order ?? 0);
    if (path === 'cpu') return `${allocates}. Its magazine hands out ${level?.objects === 0 ? 'its last' : 'a'} pointer, without a lock${level?.objects ? `: ${grouped(level.objects)} left` : ''}.`;
    if (path === 'depot' || event('takes a magazine')) return `${allocates}, but its magazines are empty. A full magazine comes from the depot, under the depot's lock${split}.${mapped}`;
    if (path === 'slab' || event('allocates') && !event('adds slab')) return `${allocates}, but its magazines and the depot are empty. It takes ${batch} from a slab, under the lock of the slabs${split}.${mapped}`;
    return `${allocates}, but no slab has a free one. ${pages > 1 ? `${grouped(pages)} pages become` : 'A page becomes'} a slab, and CPU ${cpu} takes ${batch}${split}.${mapped}`;
  }
  if (what === 'free') {
    const frees = `CPU ${cpu} frees ${object}${step.allocated_on === cpu ? '' : ` that CPU ${step.allocated_on} allocated`}`;
    const returned = did.reduce((sum, text) => sum + Number(/^frees (\d+) objects/.exec(text)?.[1] ?? 0), 0), released = did.filter((text) => text.startsWith('releases slab')).length;
    if (path === 'depot' || event('puts a magazine')) return `${frees}, but its magazines are full. One magazine goes to the depot, under the depot's lock.${mapped}`;
    if (path === 'cpu' || path === 'commit' && !returned) return `${frees}. Its magazine takes the pointer${mapped ? '' : ', without a lock'}${level ? `: ${grouped(level.objects)} of ${grouped(level.room)}` : ''}.${mapped}`;
    return `${frees}, but its magazines and the depot are full. It returns ${returned ? noun(returned, 'pointer') : 'pointers'} to their slabs, under the lock of the slabs.` +
      `${released ? ` The pages of ${noun(released, 'empty slab')} are freed.` : ''}${mapped}`;
  }
  return what === 'shrink' ? shrunk(step) : step.sentence;
}

const shrunk = (step: Step): string => (step.what === 'shrink' ? `All that is free returns: ${noun(step.objects, 'pointer')} to their slabs, and the pages of ${noun(step.slabs, 'empty slab')} to the page allocator.` : '');
