//! The lab on per-CPU pages and zones.

use super::ask::{PreparedQuestion, QuestionLab, Random, choice, number};
use crate::course::lab::Answer;
use crate::told::grouped;
use crate::{Path, Step, What};

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "pages",
    title: "Per-CPU pages and zones",
    minutes: 20,
    about: "Under the slabs lies the page allocator: free blocks by order in zones, under a lock for each zone, and a few pages that each \
            CPU keeps for itself.",
    shows: "A CPU fetches pages in batches, so it takes the zone's lock once in a batch. A zone keeps a reserve: an ordinary request goes \
            to the next zone before the first one is empty.",
    pitfall: "To expect one page to leave the zone for one page that was asked for, and a zone to be used up to its last page.",
    ask,
};

/// The number of pages in a per-CPU batch: the kernel uses this number for a zone of 1 GiB.
const BATCH: u64 = 63;

fn ask(random: &mut Random) -> Vec<PreparedQuestion> {
    let n = random.of(100, 400);
    let normal = 1024 * random.of(2, 4);
    let blocks = normal / 8 + 8;
    let one = "cpus 1\n# One page\n0 alloc-pages 0";
    let many = format!("cpus 1\n# One by one\n0 alloc-pages 0 {n}");
    let zones = format!(
        "cpus 1\nzone dma32 8192\nzone normal {normal}\n# Blocks of 8 pages\n0 alloc-pages 3 {blocks}"
    );
    vec![
        PreparedQuestion::run(
            format!(
                "All memory is free, and no CPU keeps a page. A CPU without a page fetches a batch of {BATCH} pages from the zone. CPU 0 requests one page. How many pages leave the zone's free lists?"
            ),
            number("pages"),
            "uslab",
            one,
            |ran| {
                let pages = &ran.end.pages;
                let why = format!(
                    "One batch: one page is allocated, and CPU 0 keeps {}. The next requests need no lock.",
                    pages.per_cpu
                );
                Answer::new(pages.blocks + pages.per_cpu, why, ran.end.operation)
            },
        ),
        PreparedQuestion::run(
            format!("CPU 0 requests {n} pages, one by one. How many of these requests take the zone's lock?"),
            number("requests"),
            "uslab",
            many,
            move |ran| {
                let locked = ran.operations_beyond(Path::Pages);
                let why = format!("{} of {n}: one for each batch.", locked.len());
                ran.count(&locked, why)
            },
        ),
        PreparedQuestion::run(
            format!(
                "A machine has a zone Normal of {} pages and a zone DMA32 of 8,192 pages. CPU 0 requests blocks of 8 pages, and frees none. Which request is the first that DMA32 serves?",
                grouped(normal)
            ),
            choice(&[
                "when Normal has no free block left",
                "before that: Normal keeps a reserve",
                "never: the request is refused",
            ]),
            "uslab",
            zones,
            move |ran| {
                // The zone DMA32 is below the zone Normal.
                let low = |step: &Step| matches!(step.what, What::AllocPages { page, .. } if page < 8192);
                let Some((at, _)) = ran.operations_after_mark().find(|(_, steps)| steps.iter().any(low))
                else {
                    return Answer::new(2, "DMA32 served no request.".to_owned(), ran.end.operation);
                };
                let taken = (at - ran.mark - 1) * 8;
                // Pages that the CPU still keeps are no longer in the zone.
                let left = normal - taken;
                Answer::new(
                    u64::from(left >= 64),
                    format!(
                        "DMA32 serves the request after {} pages of Normal are allocated: the remaining {} are Normal's reserve for non-blocking requests.",
                        grouped(taken),
                        grouped(left)
                    ),
                    at,
                )
            },
        ),
    ]
}
