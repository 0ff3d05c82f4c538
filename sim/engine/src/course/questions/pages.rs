//! The lab on per-CPU pages and zones.

use super::ask::{PreparedQuestion, QuestionLab, Random, choice_question, number_question};
use crate::course::lab::Answer;
use crate::told::grouped;
use crate::{Path, Step, What};

pub(super) const LAB: QuestionLab = QuestionLab {
    name: "pages",
    title: "Per-CPU pages and zones",
    minutes: 20,
    about: "Slabs get their memory from the page allocator. Each zone has lists of free blocks by order, under one lock, and each CPU keeps a few free pages.",
    shows: "A CPU fetches pages in batches, so it takes the zone's lock once for each batch. A zone keeps a reserve: the next zone serves an ordinary request before the first zone is empty.",
    pitfall: "To expect that one page leaves the zone for each requested page, and that ordinary requests can use a zone up to its last page.",
    ask,
};

/// The number of pages in a per-CPU batch; the kernel uses this number for a zone of 1 GiB.
const BATCH: u64 = 63;

fn ask(random: &mut Random) -> Vec<PreparedQuestion> {
    let n = random.of(100, 400);
    let normal_pages = 1024 * random.of(2, 4);
    let blocks = normal_pages / 8 + 8;
    let one_page_script = "cpus 1\n# One page\n0 alloc-pages 0";
    let one_by_one_script = format!("cpus 1\n# One by one\n0 alloc-pages 0 {n}");
    let zones = format!(
        "cpus 1\nzone dma32 8192\nzone normal {normal_pages}\n# Blocks of 8 pages\n0 alloc-pages 3 {blocks}"
    );
    vec![
        PreparedQuestion::run(
            format!(
                "All memory is free, and no CPU keeps a page. A CPU without a page fetches a batch of {BATCH} pages from the zone. CPU 0 requests one page. How many pages leave the zone's free lists?"
            ),
            number_question("pages"),
            "uslab",
            one_page_script,
            |result| {
                let pages = &result.end.pages;
                let explanation = format!(
                    "A whole batch leaves the lists: one page is allocated, and CPU 0 keeps the other {}. Its next requests need no lock.",
                    pages.per_cpu
                );
                Answer::new(pages.blocks + pages.per_cpu, explanation, result.end.operation)
            },
        ),
        PreparedQuestion::run(
            format!("CPU 0 requests {n} pages, one by one. How many of these requests take the zone's lock?"),
            number_question("requests"),
            "uslab",
            one_by_one_script,
            move |result| {
                let zone_operations = result.operations_at_or_above_level(Path::Pages);
                let explanation = format!(
                    "{} of the {n} requests take the lock: each of them fetches a batch of pages.",
                    zone_operations.len()
                );
                result.count(&zone_operations, explanation)
            },
        ),
        PreparedQuestion::run(
            format!(
                "A machine has a zone Normal of {} pages and a zone DMA32 of 8,192 pages. CPU 0 requests blocks of 8 pages, and frees none. Which request is the first that DMA32 serves?",
                grouped(normal_pages)
            ),
            choice_question(&[
                "the first request after Normal's last free block is allocated",
                "an earlier request, because Normal keeps a reserve",
                "none: requests that Normal cannot serve are refused",
            ]),
            "uslab",
            zones,
            move |result| {
                // The zone DMA32 is below the zone Normal.
                let is_in_low_zone =
                    |step: &Step| matches!(step.what, What::AllocPages { page, .. } if page < 8192);
                let Some((operation, _)) =
                    result.operations_after_mark().find(|(_, steps)| steps.iter().any(is_in_low_zone))
                else {
                    return Answer::new(2, "DMA32 served no request.".to_owned(), result.end.operation);
                };
                let pages_taken = (operation - result.mark - 1) * 8;
                // Pages that the CPU still keeps are no longer in the zone.
                let pages_left = normal_pages - pages_taken;
                Answer::new(
                    u64::from(pages_left >= 64),
                    format!(
                        "DMA32 serves the first request after {} pages of Normal are allocated. The remaining {} pages are Normal's reserve for non-blocking requests.",
                        grouped(pages_taken),
                        grouped(pages_left)
                    ),
                    operation,
                )
            },
        ),
    ]
}
