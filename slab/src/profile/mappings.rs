//! Code mappings: the files whose code the process has mapped, with the addresses of this code. A written profile lists
//! the code mappings, so that another program can look up the symbols.

/// A mapped segment of a file, which contains code.
#[cfg_attr(
    not(all(feature = "profile", target_os = "linux")),
    allow(dead_code, reason = "this system has no mappings to find or to write")
)]
#[derive(Debug)]
pub(super) struct Mapping {
    /// Address at which the segment is mapped into the process.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) offset: usize,
    /// Address at which the file's first segment is mapped.
    pub(super) base: usize,
    pub(super) file: String,
    /// Build id of the file in hexadecimal; empty if the file has no build id.
    pub(super) build_id: String,
}

/// Returns all code mappings of the process, starting with the program's own mappings. On systems without
/// `dl_iterate_phdr`, the list is empty.
pub(super) fn mappings() -> Vec<Mapping> {
    #[cfg_attr(not(target_os = "linux"), allow(unused_mut, reason = "nothing is found"))]
    let mut found = vec![];
    #[cfg(target_os = "linux")]
    // SAFETY: `add` gets this list, and descriptions that are valid during the call.
    let _ = unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
    found
}

pub(super) fn position(mappings: &[Mapping], address: usize) -> Option<usize> {
    mappings.iter().position(|mapping| (mapping.start..mapping.end).contains(&address))
}

/// Adds the code mappings of a loaded file to a list.
///
/// # Safety
/// `info` must come from the loader, and `list` must be a pointer to a list of mappings.
#[cfg(target_os = "linux")]
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut core::ffi::c_void) -> i32 {
    use uslab_buddy::PAGE_SIZE;
    // SAFETY: by contract, the pointers are valid. The headers are mapped as long as the file, and the file's name ends
    // in a NUL.
    let (info, headers, name, list) = unsafe {
        let (info, list) = (&*info, &mut *list.cast::<Vec<Mapping>>());
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (info, headers, core::ffi::CStr::from_ptr(info.dlpi_name), list)
    };
    let at = |address: usize| (info.dlpi_addr as usize).wrapping_add(address);
    let phdrs = |kind| headers.iter().filter(move |header| header.p_type == kind);
    let is_loaded =
        |address| phdrs(libc::PT_LOAD).any(|of| (of.p_vaddr..=of.p_vaddr + of.p_filesz).contains(&address));
    let id = phdrs(libc::PT_NOTE).filter(|of| is_loaded(of.p_vaddr) && is_loaded(of.p_vaddr + of.p_filesz));
    let id = id.map(|of| (core::ptr::with_exposed_provenance(at(of.p_vaddr as usize)), of.p_filesz as usize));
    // SAFETY: the bytes are in a segment of the file, and notes are never written.
    let id = id
        .into_iter()
        .find_map(|(notes, bytes)| build_id(unsafe { core::slice::from_raw_parts(notes, bytes) }));
    let program = list.is_empty().then(std::env::current_exe).and_then(Result::ok);
    let file =
        program.map_or_else(|| name.to_string_lossy(), |file| file.to_string_lossy().into_owned().into());
    let base = phdrs(libc::PT_LOAD).map(|of| at(of.p_vaddr as usize)).min().unwrap_or(0);
    list.extend(phdrs(libc::PT_LOAD).filter(|of| of.p_flags & libc::PF_X != 0).map(|of| {
        let into_page = of.p_vaddr as usize % PAGE_SIZE;
        Mapping {
            start: at(of.p_vaddr as usize) - into_page,
            end: at((of.p_vaddr + of.p_memsz) as usize).next_multiple_of(PAGE_SIZE),
            offset: (of.p_offset as usize).saturating_sub(into_page),
            base: base / PAGE_SIZE * PAGE_SIZE,
            file: file.clone().into_owned(),
            build_id: id.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }));
    0
}

#[cfg(target_os = "linux")]
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    while let Some((head, rest)) = notes.split_at_checked(12) {
        let word = |at: usize| u32::from_ne_bytes(core::array::from_fn(|i| head[at + i])) as usize;
        let (begin, len) = (word(0).next_multiple_of(4), word(4));
        let content = rest.get(begin..begin + len)?;
        if word(8) == 3 && rest.starts_with(b"GNU\0") {
            return Some(content);
        }
        notes = rest.get(begin + len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn note(name: &[u8], content: &[u8], kind: u32) -> Vec<u8> {
        let mut note: Vec<u8> = [name.len() as u32, content.len() as u32, kind]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        for part in [name, content] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn build_id_is_found_among_several_elf_notes() {
        let id = [7, 8, 9, 10, 11];
        let [go, abi, gnu] =
            [note(b"Go\0", b"go-id", 3), note(b"GNU\0", &[0; 16], 1), note(b"GNU\0", &id, 3)];
        assert_eq!(build_id(&[&go[..], &abi, &gnu].concat()), Some(&id[..]));
        assert_eq!(build_id(&[&go[..], &abi].concat()), None);
        assert_eq!(
            (build_id(&[]), build_id(&gnu[..14]), build_id(&note(b"GNU\0", &id, 3)[..18])),
            (None, None, None)
        );
        let mut long = gnu;
        long[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(build_id(&long), None);
    }

    /// The kernel's list of mappings must contain each code mapping, with its file and offset.
    #[test]
    fn profile_mappings_appear_in_proc_self_maps() {
        let all = mappings();
        let address = profile_mappings_appear_in_proc_self_maps as *const () as usize;
        let own = &all[position(&all, address).unwrap()];
        let program = std::env::current_exe().unwrap().to_string_lossy().into_owned();
        assert_eq!((&own.file, position(&all, address), position(&all, 16)), (&program, Some(0), None));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = format!("{:x}-{:x} r-xp {:08x} ", own.start, own.end, own.offset);
        assert!(
            maps.lines().any(|line| line.starts_with(&mapped) && line.ends_with(&program)),
            "{mapped}: {maps}"
        );
        // A backtrace of another test may map the file, too.
        let base = format!("{:x}-", own.base);
        let maps_base = |line: &str| line.starts_with(&base) && line.ends_with(&program);
        assert!(maps.lines().any(maps_base), "{base}: {maps}");
    }
}
