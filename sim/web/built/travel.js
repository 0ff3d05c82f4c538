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
	/** `stream` is columns, or a script as text. `reserve` bytes of heap are made at once. `design` is as `--design` has it. */
	static async open(wasm, stream, reserve, design = "uslab") {
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
			fine(exports.open());
		}
		if (reserve) exports.reserve(reserve);
		return new Engine(exports);
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
	/** In use, cached, free in slabs, slabs; then in use, cached and served of each cache. */
	sample() {
		const at = this.exports.sample();
		return new Float64Array(this.exports.memory.buffer, at, 4 + 3 * this.about.caches.length).slice();
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
var Travel = class {
	engine;
	every;
	operations;
	/** The last checkpoint. */
	newest = 0;
	/** Bytes of changed pages. */
	kept = 0;
	/** Operations that ran again because somebody went back. */
	reran = 0;
	/** Memory at operation 0. */
	first;
	hashes;
	/** Page -> [checkpoint, its bytes], oldest first. */
	versions = /* @__PURE__ */ new Map();
	/** With a checkpoint after every so many operations. The engine is at operation 0. */
	constructor(engine, every) {
		this.engine = engine;
		this.every = every;
		this.operations = engine.about.operations;
		this.first = new Uint8Array(engine.exports.memory.buffer).slice();
		this.hashes = Float64Array.from({ length: this.first.length / PAGE }, (_, page) => this.hash(page));
	}
	/** Goes on to the next checkpoint and keeps the pages that changed. False when there is none before the end. */
	record() {
		const next = (this.newest + 1) * this.every;
		if (next >= this.operations) return false;
		this.engine.run(next);
		const memory = this.memory();
		this.newest++;
		for (let page = 0; page < this.hashes.length; page++) {
			const hash = this.hash(page);
			if (hash === this.hashes[page]) continue;
			this.hashes[page] = hash;
			const versions = this.versions.get(page) ?? [];
			versions.push([this.newest, memory.slice(page * PAGE, (page + 1) * PAGE)]);
			this.versions.set(page, versions);
			this.kept += PAGE;
		}
		return true;
	}
	/** The rest of the run, and then the end. */
	finish() {
		this.engine.run(this.operations);
		this.memory();
	}
	/** After operation n, as a run up to it would be. */
	to(n) {
		const checkpoint = Math.min(Math.floor(n / this.every), this.newest);
		const { at } = this.engine;
		if (at > n || at < checkpoint * this.every || n === 0) {
			this.restore(checkpoint);
			this.reran += n - this.engine.at;
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
		const memory = this.memory();
		memory.set(this.first);
		for (const [page, versions] of this.versions) {
			const version = versions.findLast(([made]) => made <= checkpoint);
			if (version) memory.set(version[1], page * PAGE);
		}
		this.engine.at = checkpoint * this.every;
	}
	/** All of it, which is as large as it was. */
	memory() {
		const { buffer } = this.engine.exports.memory;
		if (buffer.byteLength !== this.first.length) throw new Grew();
		return new Uint8Array(buffer);
	}
	hash(page) {
		return this.engine.exports.page_hash(page * PAGE, PAGE);
	}
};
export { Engine, Grew, Travel };
