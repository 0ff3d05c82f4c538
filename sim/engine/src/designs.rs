//! Selects a design by name, with options.

use crate::design::{Design, NoMemory, Unsupported};
use crate::machine::{Machine, MachineError};
use crate::model::{Knob, Model, Op, Policy};
use crate::models::bonwick94::{self, Bonwick94};
use crate::models::magazines01::Magazines01;
use crate::models::sheaves::{self, Node, Sheaves};
use crate::models::slab::Slab;
use crate::models::slub::{self, Slub};
use crate::models::uslab::Uslab;
use crate::pages::Pages;
use crate::shipping::Shipping;
use crate::slabs::Object;
use crate::stream::{CacheInfo, Stream};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use uslab::{Geometry, Magazines};
use uslab_magazine::{Cpus, MAX_CAPACITY, MAX_DEPOT};

/// A built-in design, or a design that a program provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Uslab,
    UslabModel,
    Slub,
    Sheaves618,
    Sheaves,
    Linux,
    Slab,
    Bonwick94,
    Magazines01,
    Own,
}

/// Returns the options of a design. Returns an empty list for an unknown design.
pub fn knobs<P: Policy>(design: &str) -> &'static [Knob] {
    let linux = (design == LINUX_DESIGN).then_some(Kind::Linux);
    match linux.or_else(|| kinds::<P>().find(|(_, name, _)| *name == design).map(|(kind, ..)| kind)) {
        None => &[],
        Some(Kind::Uslab) => &SHIPPING_DESIGN_KNOBS,
        Some(Kind::UslabModel) => Uslab::KNOBS,
        Some(Kind::Slub) => Slub::KNOBS,
        Some(Kind::Sheaves618) => Sheaves::<Slub>::KNOBS,
        Some(Kind::Sheaves) => Sheaves::<Node>::KNOBS,
        Some(Kind::Linux) => &LINUX_KNOBS,
        Some(Kind::Slab) => Slab::KNOBS,
        Some(Kind::Bonwick94) => Bonwick94::KNOBS,
        Some(Kind::Magazines01) => Magazines01::KNOBS,
        Some(Kind::Own) => P::KNOBS,
    }
}

/// The options that [`LINUX_DESIGN`] accepts: boot parameters and `sysfs` attributes of Linux's slab allocators. A
/// traced kernel without sheaves refuses the first of these kernel options.
static LINUX_KNOBS: [Knob; 6] = [
    sheaves::SHEAF_CAPACITY,
    slub::CPU_PARTIAL_KNOB,
    slub::MIN_PARTIAL_KNOB,
    slub::SLAB_MIN_OBJECTS_KNOB,
    slub::SLAB_MIN_ORDER_KNOB,
    slub::SLAB_MAX_ORDER_KNOB,
];

/// The options of the shipping allocator; if only `capacity` is set, the other two options have the default values
/// given here. Without `capacity`, the defaults of all three options depend on the object size.
static SHIPPING_DESIGN_KNOBS: [Knob; 3] = [
    Knob {
        name: "capacity",
        means: "number of objects in a magazine (0: no magazines)",
        range: 0..=MAX_CAPACITY as u64,
        percent: false,
        default: Uslab::KNOBS[0].default,
    },
    Knob {
        name: "stock",
        means: "number of magazines, in addition to two, that a CPU's stack has room for; requires capacity",
        range: 0..=u16::MAX as u64,
        percent: false,
        default: |_, _| STOCK.into(),
    },
    Knob {
        name: "depot_limit",
        means: "largest number of full magazines in the depot; requires capacity",
        range: 0..=MAX_DEPOT as u64,
        percent: false,
        default: |_, _| DEPOT_LIMIT.into(),
    },
];
const STOCK: u16 = 8;
const DEPOT_LIMIT: u32 = 10;

/// The name of the design of the traced kernel: see [`Spec::as_traced`].
pub const LINUX_DESIGN: &str = "linux";

/// Returns the name and a one-line description of every design, including the caller's [`Policy`] `P`.
pub fn all<P: Policy>() -> impl Iterator<Item = (&'static str, &'static str)> {
    kinds::<P>().map(|(_, name, description)| (name, description))
}

fn kinds<P: Policy>() -> impl Iterator<Item = (Kind, &'static str, &'static str)> {
    fn of<P: Policy>(kind: Kind) -> (Kind, &'static str, &'static str) {
        (kind, P::NAME, P::DESCRIPTION)
    }
    let all = [
        (Kind::Uslab, "uslab", "the shipping allocator"),
        of::<Uslab>(Kind::UslabModel),
        of::<Slub>(Kind::Slub),
        of::<Sheaves<Slub>>(Kind::Sheaves618),
        of::<Sheaves<Node>>(Kind::Sheaves),
        of::<Slab>(Kind::Slab),
        of::<Bonwick94>(Kind::Bonwick94),
        of::<Magazines01>(Kind::Magazines01),
        of::<P>(Kind::Own),
    ];
    all.into_iter().filter(|(_, name, _)| !name.is_empty())
}

/// The policy type for programs that provide no policy.
#[derive(Debug)]
pub enum NoPolicy {}

impl Policy for NoPolicy {
    const NAME: &'static str = "";
    const DESCRIPTION: &'static str = "";
    type Knobs = bonwick94::Knobs;
    const LISTS: &'static [&'static str] = &[];
    fn new(_: &CacheInfo, _: Cpus, _: &Geometry, _: &Self::Knobs) -> Self {
        unreachable!("the placeholder policy has no name")
    }
    fn alloc(&mut self, _: &mut Op<'_>) -> Result<Object, NoMemory> {
        match *self {}
    }
    fn free(&mut self, _: &mut Op<'_>, _: Object) {
        match *self {}
    }
    fn shrink(&mut self, _: &mut Op<'_>) -> u64 {
        match *self {}
    }
}

/// A design and its options, as in `slub:cpu_partial=0:min_partial=10`. The type `P` is a policy that the program
/// provides.
#[derive(Debug)]
pub struct Spec<P: Policy = NoPolicy> {
    kind: Kind,
    name: &'static str,
    knobs: serde_json::Map<String, serde_json::Value>,
    own: PhantomData<P>,
}

impl<P: Policy> Default for Spec<P> {
    /// The default spec, which selects the shipping allocator.
    fn default() -> Self {
        Self { kind: Kind::Uslab, name: "uslab", knobs: serde_json::Map::new(), own: PhantomData }
    }
}

impl<P: Policy> Clone for Spec<P> {
    fn clone(&self) -> Self {
        Self { knobs: self.knobs.clone(), ..*self }
    }
}

fn unknown_kernel() -> Unsupported {
    Unsupported(
        "`linux` stands for the traced kernel's design, but the trace does not name the kernel: expected kernel.txt or slab-attributes.tsv \
         in the folder of the trace, or one of slub (6.1 to 6.17), sheaves-6.18 (6.18, 6.19), sheaves (7.x)"
            .to_owned(),
    )
}

/// The error for a text that is not a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSpec(String);

impl<P: Policy> FromStr for Spec<P> {
    type Err = BadSpec;

    fn from_str(text: &str) -> Result<Self, BadSpec> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let linux = (Kind::Linux, LINUX_DESIGN, "");
        let Some((kind, name, _)) =
            kinds::<P>().chain([linux]).find(|(_, known_names, _)| *known_names == name)
        else {
            let known_names =
                all::<P>().map(|(name, _)| name).chain([LINUX_DESIGN]).collect::<Vec<_>>().join(", ");
            return Err(BadSpec(format!("unknown design `{name}`; expected one of {known_names}")));
        };
        let mut spec = Self { kind, name, ..Self::default() };
        for part in parts {
            let not_a_number = || BadSpec(format!("`{part}` of {name}: expected a knob as KEY=NUMBER"));
            let (key, value) = part.split_once('=').ok_or_else(not_a_number)?;
            let knob = knobs::<P>(name).iter().find(|knob| knob.name == key);
            let value = match value.parse::<u64>() {
                Ok(number) => {
                    if let Some(knob) = knob.filter(|knob| !knob.range.contains(&number)) {
                        return Err(BadSpec(format!("{name}: {key}={value}: expected {}", knob.accepts())));
                    }
                    number.into()
                }
                Err(_) if knob.is_some_and(|knob| knob.percent) => value.into(),
                Err(_) => return Err(not_a_number()),
            };
            let key = key.to_owned();
            if spec.knobs.insert(key.clone(), value).is_some() {
                return Err(BadSpec(format!("`{key}` of {name} is set twice")));
            }
        }
        spec.check().map_err(|error| BadSpec(format!("{name}: {error}")))?;
        Ok(spec)
    }
}

impl<P: Policy> fmt::Display for Spec<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let knobs = self.knobs.iter().map(|(key, of)| format!(":{key}={}", value(of)));
        f.pad(&format!("{}{}", self.name, knobs.collect::<String>()))
    }
}

/// The options of the shipping allocator: see [`Magazines`].
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    capacity: Option<u16>,
    stock: Option<u16>,
    depot_limit: Option<u32>,
}

/// Code that can run with any [`Design`].
pub trait Visitor {
    /// The type of the result that the code returns.
    type Out;
    /// Runs the code with the given design.
    fn visit<D: Design>(self, design: D) -> Self::Out;
}

/// Code that can run with any [`Policy`].
pub trait PolicyVisitor {
    /// The type of the result that the code returns.
    type Out;
    /// Runs the code with the given options of the policy `P`.
    fn visit<P: Policy>(self, knobs: P::Knobs) -> Self::Out;
}

/// The error for a design that cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum DesignError {
    /// A machine with this configuration is not supported.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The design does not support the stream.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

impl<P: Policy> Spec<P> {
    fn check(&self) -> Result<(), String> {
        match self.kind {
            Kind::Uslab => self.magazines().map(drop),
            Kind::UslabModel => self.knobs::<Uslab>().map(drop),
            Kind::Slub => self.knobs::<Slub>().map(drop),
            Kind::Sheaves618 => self.knobs::<Sheaves<Slub>>().map(drop),
            Kind::Sheaves => self.knobs::<Sheaves<Node>>().map(drop),
            // The options of the Linux designs are among the options of this design.
            Kind::Linux => self.knobs::<Sheaves<Node>>().map(drop),
            Kind::Slab => self.knobs::<Slab>().map(drop),
            Kind::Bonwick94 => self.knobs::<Bonwick94>().map(drop),
            Kind::Magazines01 => self.knobs::<Magazines01>().map(drop),
            Kind::Own => self.knobs::<P>().map(drop),
        }
    }
    /// Returns the shipping allocator's magazine options.
    fn magazines(&self) -> Result<Magazines, String> {
        let knobs: Sizes =
            serde_json::from_value(self.knobs.clone().into()).map_err(|error| error.to_string())?;
        match knobs {
            Sizes { capacity: None, stock: None, depot_limit: None } => Ok(Magazines::BySize),
            Sizes { capacity: None, .. } => Err("stock and depot_limit require capacity=N".to_owned()),
            Sizes { capacity: Some(0), stock: None, depot_limit: None } => Ok(Magazines::Off),
            Sizes { capacity: Some(0), .. } => {
                Err("capacity=0: expected neither stock nor depot_limit, which require magazines".to_owned())
            }
            Sizes { capacity: Some(capacity), stock, depot_limit } => Ok(Magazines::Sized {
                capacity,
                stock: stock.unwrap_or(STOCK),
                depot_limit: depot_limit.unwrap_or(DEPOT_LIMIT),
            }),
        }
    }
    fn shipping(&self, stream: &Stream) -> Result<Machine, DesignError> {
        Ok(Machine::with_magazines(stream, self.magazines().map_err(Unsupported)?)?)
    }
    fn knobs<Q: Policy>(&self) -> Result<Q::Knobs, String> {
        let knobs = serde_json::from_value(self.knobs.clone().into()).map_err(|error| error.to_string())?;
        Q::accept(&knobs).map_err(|error| error.to_string())?;
        Ok(knobs)
    }

    /// Returns the design that is to run. For [`LINUX_DESIGN`], returns the traced kernel's design with the options of
    /// `self`.
    ///
    /// # Errors
    /// Fails if the stream names no traced kernel, or if that kernel's design lacks an option that `self` sets.
    pub fn as_traced(&self, stream: &Stream) -> Result<Self, Unsupported> {
        if self.kind != Kind::Linux {
            return Ok(self.clone());
        }
        let mut traced = stream.linux.parse::<Self>().map_err(|_| unknown_kernel())?;
        traced.knobs.extend(self.knobs.clone());
        traced.check().map_err(|error| {
            Unsupported(format!("the traced kernel's design is {}: {error}", traced.name))
        })?;
        Ok(traced)
    }

    /// Returns the same design with default options, or `None` if `self` already has the defaults.
    pub fn without_options(&self) -> Option<Self> {
        (!self.knobs.is_empty()).then(|| Self { knobs: <_>::default(), ..*self })
    }

    /// Creates the design with the number of CPUs that the stream has, and passes it to the visitor.
    ///
    /// # Errors
    /// Returns a [`DesignError`].
    pub fn on<V: Visitor>(&self, stream: &Stream, visitor: V) -> Result<V::Out, DesignError> {
        match self.kind {
            Kind::Uslab => {
                let machine = self.shipping(stream)?;
                Ok(visitor.visit(Shipping::on(&machine)))
            }
            Kind::UslabModel => self.model::<Uslab, V>(stream, visitor),
            Kind::Slub => self.model::<Slub, V>(stream, visitor),
            Kind::Sheaves618 => self.model::<Sheaves<Slub>, V>(stream, visitor),
            Kind::Sheaves => self.model::<Sheaves<Node>, V>(stream, visitor),
            Kind::Linux => self.as_traced(stream)?.on(stream, visitor),
            Kind::Slab => self.model::<Slab, V>(stream, visitor),
            Kind::Bonwick94 => self.model::<Bonwick94, V>(stream, visitor),
            Kind::Magazines01 => self.model::<Magazines01, V>(stream, visitor),
            Kind::Own => self.model::<P, V>(stream, visitor),
        }
    }
    /// Passes the design's policy to the visitor.
    ///
    /// # Errors
    /// Fails for the shipping allocator, which is not a [`Policy`].
    pub fn policy<V: PolicyVisitor>(&self, visitor: V) -> Result<V::Out, Unsupported> {
        fn of<Q: Policy, V: PolicyVisitor>(
            spec: &Spec<impl Policy>,
            visitor: V,
        ) -> Result<V::Out, Unsupported> {
            Ok(visitor.visit::<Q>(spec.knobs::<Q>().map_err(Unsupported)?))
        }
        match self.kind {
            Kind::Uslab => Err(Unsupported(
                "uslab has no clock: it is real code, which reports no cost events; use uslab-model"
                    .to_owned(),
            )),
            Kind::UslabModel => of::<Uslab, V>(self, visitor),
            Kind::Slub => of::<Slub, V>(self, visitor),
            Kind::Sheaves618 => of::<Sheaves<Slub>, V>(self, visitor),
            Kind::Sheaves => of::<Sheaves<Node>, V>(self, visitor),
            Kind::Linux => Err(unknown_kernel()),
            Kind::Slab => of::<Slab, V>(self, visitor),
            Kind::Bonwick94 => of::<Bonwick94, V>(self, visitor),
            Kind::Magazines01 => of::<Magazines01, V>(self, visitor),
            Kind::Own => of::<P, V>(self, visitor),
        }
    }
    /// Creates an engine that lives until the end of the program.
    #[cfg(target_family = "wasm")]
    pub(crate) fn play(&self, stream: &'static Stream) -> Result<Box<dyn crate::play::Play>, DesignError>
    where
        P: 'static,
    {
        use crate::engine::Engine;
        match self.kind {
            Kind::Uslab => {
                let machine = Box::leak(Box::new(self.shipping(stream)?));
                Ok(Box::new(Engine::new(Shipping::on(machine), stream)))
            }
            Kind::UslabModel => self.play_model::<Uslab>(stream),
            Kind::Slub => self.play_model::<Slub>(stream),
            Kind::Sheaves618 => self.play_model::<Sheaves<Slub>>(stream),
            Kind::Sheaves => self.play_model::<Sheaves<Node>>(stream),
            Kind::Linux => self.as_traced(stream)?.play(stream),
            Kind::Slab => self.play_model::<Slab>(stream),
            Kind::Bonwick94 => self.play_model::<Bonwick94>(stream),
            Kind::Magazines01 => self.play_model::<Magazines01>(stream),
            Kind::Own => self.play_model::<P>(stream),
        }
    }
    #[cfg(target_family = "wasm")]
    fn play_model<Q: Policy + 'static>(
        &self,
        stream: &'static Stream,
    ) -> Result<Box<dyn crate::play::Play>, DesignError> {
        let pages = Box::leak(Box::new(Pages::of(stream)?));
        let model =
            Model::<Q>::new(pages, self.knobs::<Q>().map_err(Unsupported)?)?.as_traced(self.is_of(stream));
        Ok(Box::new(crate::engine::Engine::new(model, stream)))
    }
    /// Returns `true` if this design is the design of the kernel that recorded the stream.
    fn is_of(&self, stream: &Stream) -> bool {
        stream.linux.split(':').next() == Some(self.name)
    }
    fn model<Q: Policy, V: Visitor>(&self, stream: &Stream, visitor: V) -> Result<V::Out, DesignError> {
        let pages = Pages::of(stream)?;
        let knobs = self.knobs::<Q>().map_err(Unsupported)?;
        Ok(visitor.visit(Model::<Q>::new(&pages, knobs)?.as_traced(self.is_of(stream))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn design_is_parsed_from_its_name_and_knobs() {
        for text in all::<NoPolicy>()
            .map(|(name, _)| name)
            .chain(["slub:cpu_partial=0:min_partial=10", "linux:sheaf_capacity=50%"])
        {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn each_knob_has_an_explanation() {
        for (design, _) in all::<NoPolicy>() {
            let message = format!("{design}:no_such_knob=1").parse::<Spec>().unwrap_err().to_string();
            // Parses `unknown field X, expected one of A, B`, with quotes.
            let known_knobs: Vec<_> = message.split('`').skip(3).step_by(2).collect();
            let explained: Vec<_> = knobs::<NoPolicy>(design).iter().map(|knob| knob.name).collect();
            assert_eq!(explained, known_knobs, "{message}");
        }
    }

    #[test]
    fn knob_text_shows_its_default() {
        let message = |design, name| {
            let knob = knobs::<NoPolicy>(design).iter().find(|knob| knob.name == name);
            knob.map(ToString::to_string).unwrap_or_default()
        };
        assert_eq!(
            message("uslab-model", "capacity"),
            "number of objects in a magazine (0: no magazines): 0 to 64, by default 64 for 64 bytes and 16 for 4096"
        );
        assert_eq!(
            message("slub", "slab_max_order"),
            "largest order of a slab that holds more than one object: 0 to 10, by default 3"
        );
        assert_eq!(
            message("slub", "cpus"),
            "number of CPUs of the policy: at least 1, by default 4 on 4 CPUs and 64 on 64"
        );
        for (design, _) in all::<NoPolicy>() {
            for Knob { name, range, default, .. } in knobs::<NoPolicy>(design) {
                assert!(
                    range.contains(&default(64, 4)) && range.contains(&default(8192, 1024)),
                    "{design}:{name}"
                );
            }
        }
    }

    #[test]
    fn invalid_design_error_names_the_accepted_values() {
        for (text, error) in [
            (
                "slob",
                "unknown design `slob`; expected one of uslab, uslab-model, slub, sheaves-6.18, sheaves, slab, bonwick94, magazines01, linux",
            ),
            ("slub:cpu_partial", "`cpu_partial` of slub: expected a knob as KEY=NUMBER"),
            ("slub:cpu_partial=-1", "`cpu_partial=-1` of slub: expected a knob as KEY=NUMBER"),
            ("slub:cpu_partial=1:cpu_partial=2", "`cpu_partial` of slub is set twice"),
            ("slub:limit=1", "slub: unknown field `limit`, expected one of `cpu_partial`, `min_partial`"),
            ("slub:slab_max_order=11", "slub: slab_max_order=11: expected 0 to 10"),
            ("slab:limit=0", "slab: limit=0: expected at least 1"),
            ("slab:limit=4:batchcount=5", "slab: batchcount=5: expected at most `limit`, which is 4"),
            ("sheaves:slab_max_order=11", "sheaves: slab_max_order=11: expected 0 to 10"),
            ("slub:sheaf_capacity=1", "slub: unknown field `sheaf_capacity`"),
            (
                "linux:sheaf_capacity=70000",
                "linux: sheaf_capacity=70000: expected 0 to 65536, or P% of each cache's value",
            ),
            (
                "linux:sheaf_capacity=half",
                "linux: sheaf_capacity=half: expected N objects, up to 65536, or P%, such as 50%",
            ),
            (
                "sheaves:sheaf_capacity=10001%",
                "sheaves: sheaf_capacity=10001%: expected P%, with P from 0 to 10000",
            ),
            ("sheaves:min_partial=50%", "`min_partial=50%` of sheaves: expected a knob as KEY=NUMBER"),
            ("bonwick94:limit=1", "bonwick94: unknown field `limit`"),
            ("uslab:capacity=65", "uslab: capacity=65: expected 0 to 64"),
            ("uslab:capacity=8:depot_limit=4097", "uslab: depot_limit=4097: expected 0 to 4096"),
            ("uslab:stock=1", "uslab: stock and depot_limit require capacity=N"),
            ("uslab:capacity=0:stock=1", "uslab: capacity=0: expected neither stock"),
            (
                "uslab:first_fill=1",
                "uslab: unknown field `first_fill`, expected one of `capacity`, `stock`, `depot_limit`",
            ),
            ("uslab-model:capacity=65", "uslab-model: capacity=65: expected 0 to 64"),
            ("uslab-model:capacity=0:stock=1", "uslab-model: capacity=0: expected no other option"),
            ("uslab-model:first_fill=0", "uslab-model: first_fill=0: expected 1 to 64"),
            ("uslab-model:depot_limit=4097", "uslab-model: depot_limit=4097: expected 0 to 4096"),
            // Regression test: the message was `invalid value: integer 100000, expected u16`, without the option.
            ("uslab-model:stock=100000", "uslab-model: stock=100000: expected 0 to 65535"),
        ] {
            let message = text.parse::<Spec>().unwrap_err().to_string();
            assert!(message.starts_with(error), "{message}");
        }
    }
}
