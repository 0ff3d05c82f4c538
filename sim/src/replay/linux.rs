//! Chooses a design for the traced kernel, which users select by the name
//! [`LINUX_DESIGN`](uslab_engine::designs::LINUX_DESIGN).

use super::traced::TracedInput;
use crate::trace::{Kernel, Op, OpKind};
use uslab::{Geometry, OrderRule, SlabInfo};

/// Returns the design of the traced kernel with its boot parameters, as a value of `--design`; empty if the
/// kernel is unknown.
///
/// The kernel's release determines the design. Without a release, the attributes of the caches determine the
/// design. The attribute `sheaf_capacity` exists since 6.18, and since 7.0 nearly every cache has sheaves.
pub(super) fn design(kernel: &Kernel) -> String {
    let attributes = &kernel.attributes;
    let sheaves = || attributes.numbers("sheaf_capacity").filter(|capacity| *capacity > 0).count();
    let design = match kernel.release {
        Some((7.., _)) => "sheaves",
        Some((6, 18..)) => "sheaves-6.18",
        Some(_) => "slub",
        None if sheaves() > 2 => "sheaves",
        None if sheaves() > 0 => "sheaves-6.18",
        None if attributes.has_attribute("cpu_partial") => "slub",
        None => return String::new(),
    };
    let mut options = vec![];
    for name in ["slab_min_order", "slab_max_order", "slab_min_objects"] {
        // Until 6.6 the parameters began with `slub`.
        let older = name.replacen("slab", "slub", 1);
        let given = kernel.parameters.iter().rfind(|(given, _)| given == name || *given == older);
        if let Some(value) = given.and_then(|(_, value)| value.parse::<u64>().ok()) {
            let most = if name.ends_with("order") { 10 } else { u32::MAX.into() };
            options.push(format!(":{name}={}", value.min(most)));
        }
    }
    // A kernel without partial slabs of CPUs has 0 for all caches. From 7.0 on the attribute means nothing.
    let mut partial = attributes.numbers("cpu_partial").peekable();
    if design == "slub" && partial.peek().is_some() && partial.all(|objects| objects == 0) {
        options.push(":cpu_partial=0".to_owned());
    }
    format!("{design}{}", options.concat())
}

/// Returns an option that sets the slab size from the kernel's table, if the rule for `cpus` CPUs gives a different
/// size. The size of a slab depends on the number of present CPUs, but a trace names only the online CPUs.
pub(super) fn slab_size_option(design: &str, slabinfo: Option<&SlabInfo>, cpus: u32) -> String {
    let option = |name| design.split(':').find_map(|option| option.strip_prefix(name)?.parse().ok());
    let Some(rows) = slabinfo.map(|slabinfo| &slabinfo.rows).filter(|_| !design.contains("slab_min_objects"))
    else {
        return String::new();
    };
    let mut rule = OrderRule::for_cpus(cpus);
    rule.min_order = option("slab_min_order=").unwrap_or(rule.min_order);
    rule.max_order = option("slab_max_order=").unwrap_or(rule.max_order).max(rule.min_order);
    let wrong = |min_objects: u32| {
        let rule = OrderRule { min_objects, ..rule };
        let is_right = |row: &&uslab::info::Row| {
            Geometry::new(row.object_size as usize, 0, &rule).is_ok_and(|geometry| {
                (geometry.objects() as u64, geometry.order().pages().into())
                    == (row.objects_per_slab, row.pages_per_slab)
            })
        };
        rows.len() - rows.iter().filter(is_right).count()
    };
    // The rule gives four more objects for each doubling of CPUs, from eight for one CPU.
    let best = (8..=44).step_by(4).min_by_key(|objects| wrong(*objects));
    let better = best.filter(|best| wrong(*best) < wrong(0));
    better.map_or_else(String::new, |objects| format!(":slab_min_objects={objects}"))
}

/// Returns `true` if the kernel has the slab rules of Linux 7.x.
pub(super) fn is_linux_7(kernel: &Kernel) -> bool {
    design(kernel).starts_with("sheaves:") || design(kernel) == "sheaves"
}

/// Returns the kernel's sheaf capacity for a cache; `None` if the cache has no sheaves.
pub(super) fn sheaf_capacity(kernel: &Kernel, cache: &str) -> Option<u32> {
    // Without a recorded capacity, the smallest capacity of a cache with sheaves is used.
    let of_release = || match design(kernel).split(':').next() {
        Some("sheaves") => 32,
        Some("sheaves-6.18") if matches!(cache, "maple_node" | "vm_area_struct") => 32,
        _ => 0,
    };
    let recorded = kernel.attributes.number(cache, "sheaf_capacity");
    Some(recorded.unwrap_or_else(of_release)).filter(|capacity| *capacity > 0)
}

/// Returns a description of each item that the design needs and the recording lacks, with the effect on the result.
pub(super) fn missing_items(TracedInput { resolver, ops, tables }: TracedInput<'_>) -> Vec<&'static str> {
    let design = design(&tables.kernel);
    let is_shrunk =
        |op: &Op| matches!(op.kind, OpKind::Mark { text } if resolver.mark(text) == "SHRINK begin");
    let has_page = |op: &Op| matches!(op.kind, OpKind::Alloc { ptr, .. } if resolver.page_of(ptr).is_some());
    let no_folders = || tables.snapshots.iter().all(|moment| moment.folders.is_empty());
    [
        (
            design.starts_with("sheaves") && !tables.kernel.attributes.has_attribute("sheaf_capacity"),
            "sheaf_capacity in slab-attributes.tsv: sheaves have the sizes that the kernel computes, also in caches with debug options, which have no sheaves in the kernel",
        ),
        (
            !design.is_empty() && tables.kernel.parameters.is_empty(),
            "cmdline.txt: the boot parameters are assumed to leave the slabs unchanged (slab_max_order, slab_min_order, slab_min_objects)",
        ),
        (
            ops.iter().any(is_shrunk) && no_folders(),
            "MOMENT.sysfs-slab.tsv: all caches are shrunk at the same time, but the kernel shrank them one after the other; some caches have one sheaf or slab more",
        ),
        (
            !ops.iter().any(has_page),
            "addresses of pages (they are hashed): slabs from before the trace are unknown, and objects freed without an event stay in use",
        ),
    ]
    .into_iter()
    .filter_map(|(is_missing, what)| is_missing.then_some(what))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::testing::{SLABINFO, Trace};
    use crate::trace::Tables;
    use std::path::Path;

    fn of(texts: &[(&str, &str)]) -> String {
        let text =
            |path: &Path| Ok(texts.iter().find(|(name, _)| path.ends_with(name)).map(|(_, text)| *text));
        design(&Tables::of(Path::new(""), text).expect("tables").kernel)
    }

    #[test]
    fn release_and_boot_parameters_select_the_design() {
        let release = |release| of(&[("kernel.txt", release)]);
        assert_eq!(
            ["5.15.1", "6.17.9", "6.18.0", "6.19", "7.0.1", "10.1"].map(release),
            ["slub", "slub", "sheaves-6.18", "sheaves-6.18", "sheaves", "sheaves"]
        );
        let booted = |line| of(&[("kernel.txt", "7.2.13"), ("cmdline.txt", line)]);
        assert_eq!(booted("quiet slab_nomerge slab_max_order=0"), "sheaves:slab_max_order=0");
        assert_eq!(booted("slab_max_order=1 slub_max_order=2 slab_min_order=x"), "sheaves:slab_max_order=2");
    }

    #[test]
    fn present_offline_cpus_increase_the_slab_size() {
        let text = |path: &Path| {
            Ok(path.ends_with("end.slabinfo").then_some(include_str!("../../data/files-6.1.end.slabinfo")))
        };
        let tables = Tables::of(Path::new(""), text).expect("tables");
        let of = |design, cpus| slab_size_option(design, tables.latest_slabinfo(), cpus);
        // The machine has four present CPUs, as for 4 to 7.
        assert_eq!([4, 6].map(|cpus| of("slub", cpus)), ["", ""]);
        assert_eq!([1, 3, 8].map(|cpus| of("sheaves", cpus)), [":slab_min_objects=16"; 3]);
        assert_eq!(of("slub:slab_min_objects=4", 1), "");
        assert_eq!(slab_size_option("slub", None, 1), "");
    }

    #[test]
    fn missing_recording_data_is_reported_with_its_effect() {
        let of = |lines: &[&str], texts: &[(&str, &str)]| missing_items(Trace::new(lines, texts).traced());
        let alloc = "0 alloc f+0x1 node ffff888001000000";
        let all = [
            ("kernel.txt", "7.2"),
            ("cmdline.txt", "quiet"),
            ("slab-attributes.tsv", "name\tsheaf_capacity\n"),
            ("before.slabinfo", SLABINFO),
            ("before.sysfs-slab.tsv", "name\tslabs\nnode\t1\n"),
        ];
        let shrunk = ["0 mark SHRINK begin", alloc];
        assert_eq!(of(&shrunk, &all), [""; 0]);
        for (without, named) in [
            ("slab-attributes.tsv", "sheaf_capacity"),
            ("cmdline.txt", "cmdline.txt"),
            ("before.sysfs-slab.tsv", "MOMENT.sysfs-slab.tsv"),
        ] {
            let some: Vec<_> = all.into_iter().filter(|(name, _)| *name != without).collect();
            let said = of(&shrunk, &some);
            assert!(said.len() == 1 && said[0].starts_with(named) && said[0].contains(": "), "{said:?}");
        }
        let hashed = of(&["0 alloc f+0x1 node 00000000deadbeef"], &all);
        assert!(hashed.len() == 1 && hashed[0].contains("hashed"), "{hashed:?}");
    }

    #[test]
    fn design_follows_from_attributes_without_a_release() {
        let attributes = |column: &str, values: [&str; 3]| {
            let rows = ["a", "b", "c"].iter().zip(values).map(|(name, value)| format!("{name}\t{value}\n"));
            of(&[("slab-attributes.tsv", &format!("name\t{column}\n{}", rows.collect::<String>()))])
        };
        assert_eq!(attributes("sheaf_capacity", ["60", "28", "4"]), "sheaves");
        assert_eq!(attributes("sheaf_capacity", ["32", "0", "0"]), "sheaves-6.18");
        assert_eq!(attributes("cpu_partial", ["120", "0", "0"]), "slub");
        assert_eq!(attributes("cpu_partial", ["0", "0", "0"]), "slub:cpu_partial=0");
        assert_eq!(attributes("align", ["8", "8", "8"]), "");
        assert_eq!(of(&[]), "");
    }
}
