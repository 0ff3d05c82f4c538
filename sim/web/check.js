// node check.js ENGINE.wasm STREAM FILE with {design, shown, every, most, moments: [[operation, hash of the view]]}: goes to the moments in
// their order and compares; tests/sim/page.rs knows the hashes from native runs. An engine records checkpoints, and another one travels on
// at most so many bytes of them. With `every` 0 the moments are in order, and nothing is kept.
import { readFileSync } from 'node:fs';
import { Engine, Recorder, Travel } from './built/travel.js';

const [wasm, stream, wanted] = process.argv.slice(2);
const { design, shown, every, most, moments } = JSON.parse(readFileSync(wanted, 'utf8'));

try {
  const open = () => Engine.open(readFileSync(wasm), readFileSync(stream), 64 << 20, design);
  const engine = await open();
  const travel = every ? new Travel(engine, every, most) : null;
  if (travel) {
    const ahead = await open();
    const recorder = new Recorder(ahead);
    for (let next = every; next < travel.operations; next += every) {
      ahead.run(next);
      travel.take(recorder.checkpoint());
    }
    recorder.finish();
    ahead.check();
  }
  for (const [at, hash] of moments) {
    const text = (travel ?? engine).view(at, shown);
    const found = BigInt.asUintN(64, engine.exports.text_hash()).toString(16).padStart(16, '0');
    if (found !== hash) throw new Error(`operation ${at}: view ${found}, natively ${hash}\n${text.slice(0, 2000)}`);
    if (travel) engine.check();
  }
  engine.check();
  if (travel && travel.kept > most) throw new Error(`${travel.kept} bytes are kept`);
  console.log(`${moments.length} moments${travel ? `, ${travel.checkpoints} checkpoints` : ''}`);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
