// src/engine.ts
/** The heap had to grow, and linear memory cannot shrink again: begin anew with more reserved. */
var Grew = class extends Error {};
var Engine = class Engine {
	exports;
	/** Operations that ran. */
	at = 0;
	about;
	constructor(exports) {
		this.exports = exports;
		this.about = JSON.parse(this.text(exports.about()));
	}
	/** `stream` is columns, or a script as text. `reserve` bytes of heap are made at once. `design` is as `--design` has it. Columns run on so many CPUs; 0: on their own ones. */
	static async open(wasm, stream, reserve, design = "uslab", cpus = 0) {
		const exports = await instance(wasm);
		const fine = (length) => {
			if (length) throw new Error(textOf(exports, length));
		};
		put(exports, new TextEncoder().encode(design));
		fine(exports.design());
		if (typeof stream === "string") {
			put(exports, new TextEncoder().encode(stream));
			fine(exports.open_script());
		} else {
			put(exports, stream);
			fine(exports.open(cpus));
		}
		if (reserve) exports.reserve(reserve);
		return new Engine(exports);
	}
	/** A stream in virtual time, each CPU back to back, at the prices of a profile. */
	static async backToBack(wasm, stream, design, cpus, profile) {
		const exports = await instance(wasm);
		put(exports, new TextEncoder().encode(design));
		const refused = exports.design();
		if (refused) throw new Error(textOf(exports, refused));
		const known = JSON.parse(textOf(exports, exports.profiles()));
		put(exports, stream);
		const told = textOf(exports, exports.back_to_back(cpus, known.indexOf(profile)));
		const { Ok: outcome, Err: wrong } = JSON.parse(told);
		if (!outcome) throw new Error(wrong);
		return outcome;
	}
	run(until) {
		this.fine(this.exports.run(until));
		this.at = Math.max(this.at, until);
	}
	/** Runs until something happens, and no further than to `end`. */
	runUntil(until, end) {
		put(this.exports, new TextEncoder().encode(JSON.stringify(until)));
		const found = JSON.parse(this.text(this.exports.run_until(end)));
		this.at = found?.operation ?? Math.max(this.at, end);
		return found;
	}
	/** The moment after operation n as JSON, with what it did if it has not run yet; `shown`: caches to see slab by slab. */
	view(n, shown) {
		put(this.exports, new Uint8Array(Uint32Array.from(shown).buffer));
		const text = this.text(this.exports.view(n));
		this.at = n;
		return text;
	}
	/** The sums; then in use, cached and served of each cache. */
	sample() {
		const at = this.exports.sample();
		return new Float64Array(this.exports.memory.buffer, at, 8 + 3 * this.about.caches.length).slice();
	}
	/** A byte a page of memory: 0 free, 1 in per-CPU pages, 2 slab, 3 other. */
	map() {
		const length = this.exports.map();
		return new Uint8Array(this.exports.memory.buffer, this.exports.text(), length);
	}
	/** Throws if an object or page is not where its state says. */
	check() {
		this.fine(this.exports.check());
	}
	/** Names of the cost profiles that there are. */
	profiles() {
		return JSON.parse(this.text(this.exports.profiles()));
	}
	text(length) {
		return textOf(this.exports, length);
	}
	fine(length) {
		if (length) throw new Error(this.text(length));
	}
};
async function instance(wasm) {
	return (wasm instanceof WebAssembly.Module ? await WebAssembly.instantiate(wasm, {}) : (await WebAssembly.instantiate(wasm, {})).instance).exports;
}
function put(exports, bytes) {
	const at = exports.room(bytes.length);
	new Uint8Array(exports.memory.buffer, at, bytes.length).set(bytes);
}
function textOf(exports, length) {
	return new TextDecoder().decode(new Uint8Array(exports.memory.buffer, exports.text(), length));
}
// src/replay/travel.ts
var PAGE = 4096;
var CHUNK = 1024;
var SPARE = 4 << 20;
var MOST = 384 << 20;
var LEAST = 64 << 20;
/** Runs an engine, and finds out what changed. */
var Recorder = class {
	engine;
	length;
	hashes;
	/** The engine is at operation 0, and was asked for nothing yet. */
	constructor(engine) {
		this.engine = engine;
		this.length = engine.exports.memory.buffer.byteLength;
		this.hashes = Float64Array.from({ length: this.length / PAGE }, (_, page) => this.hash(page));
	}
	/** As memory is now. */
	checkpoint() {
		const memory = memoryOf(this.engine, this.length);
		const pages = [];
		for (let page = 0; page < this.hashes.length; page++) {
			const hash = this.hash(page);
			if (hash === this.hashes[page]) continue;
			this.hashes[page] = hash;
			pages.push(page);
		}
		const bytes = new Uint8Array(pages.length * PAGE);
		pages.forEach((page, i) => bytes.set(memory.subarray(page * PAGE, (page + 1) * PAGE), i * PAGE));
		return {
			at: this.engine.at,
			pages: Uint32Array.from(pages),
			bytes
		};
	}
	/** The rest of the run. */
	finish() {
		this.engine.run(this.engine.about.operations);
		this.engine.exports.reserve(SPARE);
		memoryOf(this.engine, this.length);
	}
	hash(page) {
		return this.engine.exports.page_hash(page * PAGE, PAGE);
	}
};
/** Room for pages. */
var Slots = class {
	free = [];
	made = 0;
	chunks = [];
	put(bytes) {
		const slot = this.free.pop() ?? this.made++;
		this.get(slot).set(bytes);
		return slot;
	}
	get(slot) {
		return (this.chunks[Math.floor(slot / CHUNK)] ??= new Uint8Array(CHUNK * PAGE)).subarray(slot % CHUNK * PAGE, (slot % CHUNK + 1) * PAGE);
	}
};
var Travel = class {
	engine;
	every;
	operations;
	/** Bytes of pages that are kept. */
	kept = 0;
	/** Operations that ran again because somebody went back. */
	reran = 0;
	/** The last checkpoint's operation. */
	newest = 0;
	most;
	/** Bytes of the engine's memory. */
	length;
	/** Page -> [operation, where its bytes are], oldest first; where it was zero at operation 0, there is none of that. */
	versions = /* @__PURE__ */ new Map();
	slots = new Slots();
	/** With a checkpoint after every so many operations, of at most so many bytes. The engine is at operation 0. */
	constructor(engine, every, most) {
		this.engine = engine;
		this.every = every;
		this.operations = engine.about.operations;
		const { buffer } = engine.exports.memory;
		this.length = buffer.byteLength;
		this.most = most ?? Math.max(MOST - this.length, LEAST);
		const words = new Int32Array(buffer), zero = (page) => {
			for (let i = page * PAGE / 4; i < (page + 1) * PAGE / 4; i++) if (words[i]) return false;
			return true;
		};
		for (let page = 0; page < this.length / PAGE; page++) if (!zero(page)) this.keep(0, page, new Uint8Array(buffer, page * PAGE, PAGE));
	}
	/** Bytes in all. */
	get memory() {
		return this.length + this.kept;
	}
	get checkpoints() {
		return Math.floor(this.newest / this.every);
	}
	/** They come in order. When they are too many, every second one goes. */
	take({ at, pages, bytes }) {
		this.newest = at;
		pages.forEach((page, i) => this.keep(at, page, bytes.subarray(i * PAGE, (i + 1) * PAGE)));
		while (this.kept > this.most && this.every < this.operations) this.thin();
	}
	/** A version takes the place of the one before, where all checkpoints see the later one. */
	keep(at, page, bytes) {
		const versions = this.versions.get(page) ?? [];
		const before = versions.at(-1);
		if (before && this.first(before[0]) === this.first(at)) this.drop(versions.pop());
		versions.push([at, this.slots.put(bytes)]);
		this.versions.set(page, versions);
		this.kept += PAGE;
	}
	drop([, slot]) {
		this.slots.free.push(slot);
		this.kept -= PAGE;
	}
	/** Half as many checkpoints. */
	thin() {
		this.every *= 2;
		for (const [page, versions] of this.versions) {
			const stays = ([at], i) => i + 1 === versions.length || this.first(at) < this.first(versions[i + 1][0]);
			versions.filter((version, i) => !stays(version, i)).forEach((version) => this.drop(version));
			this.versions.set(page, versions.filter(stays));
		}
	}
	/** The first checkpoint that a version from an operation is good for. */
	first(at) {
		return Math.ceil(at / this.every);
	}
	/** After operation n, as a run up to it would be. */
	to(n) {
		const checkpoint = Math.min(Math.floor(n / this.every), this.checkpoints) * this.every;
		const { at } = this.engine;
		if (at > n || at < checkpoint || n === 0) {
			this.restore(checkpoint);
			this.reran += n - checkpoint;
		}
		this.engine.run(n);
	}
	/** The moment after operation n as JSON, and what it did. */
	view(n, shown) {
		this.to(Math.max(n - 1, 0));
		return this.engine.view(n, shown);
	}
	/** Memory as it was at a checkpoint. A page that is the same at two may differ between them: all are written. */
	restore(checkpoint) {
		const memory = memoryOf(this.engine, this.length);
		memory.fill(0);
		for (const [page, versions] of this.versions) {
			const version = versions.findLast(([at]) => at <= checkpoint);
			if (version) memory.set(this.slots.get(version[1]), page * PAGE);
		}
		this.engine.at = checkpoint;
	}
};
/** All of it, which is as large as it was. */
function memoryOf({ exports: { memory: { buffer } } }, length) {
	if (buffer.byteLength !== length) throw new Grew();
	return new Uint8Array(buffer);
}
export { Engine, Grew, Recorder, Travel };
