//! Boots a kernel of a distribution's package in qemu, to record it.
//!
//! The guest contains only a static busybox, the workload, and the kernel modules that transfer the trace
//! (over 9p, or else over a serial port). Events are enabled from early boot, so that the trace shows the allocation of
//! almost every object.

use super::{EVENTS, Folder, INTERRUPTED_MESSAGE, Recorded, STEPS, interrupts, wait};
use anyhow::{Context, bail};
use liblzma::bufread::XzDecoder;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The script that runs as process 1 of the guest.
const GUEST: &str = include_str!("guest.sh");

/// Kernel modules that transfer the trace; if a kernel lacks such module files, its drivers are assumed to be built in.
const TRANSFER_MODULES: [&str; 3] = ["virtio_pci", "9pnet_virtio", "9p"];

/// The time limit for a guest under KVM to print its first line.
const BOOT_TIMEOUT: Duration = Duration::from_secs(30);

/// The kernel to boot, and the options of the guest machine.
#[derive(Clone, Debug)]
pub struct GuestMachine {
    /// The kernel's file, or a folder with unpacked packages.
    pub kernel: PathBuf,
    /// Additional text for the kernel's command line.
    pub append: String,
    /// Attributes, such as `cpu_partial=0`, that the guest sets for all caches before the recording.
    pub set: Vec<String>,
    /// The number of CPUs of the guest.
    pub cpus: u32,
    /// The memory of the guest in bytes.
    pub memory: u64,
    /// The size of each CPU's trace buffer in bytes.
    pub buffer: u64,
    /// Programs and scripts that are copied into the guest; if no command is given, the guest runs the first of them.
    pub workload: Vec<PathBuf>,
    /// The workload: a program and its arguments.
    pub command: Vec<String>,
    /// The time limit of the whole recording.
    pub limit: Duration,
    /// `true` to emulate the CPUs without trying KVM.
    pub emulate: bool,
}

/// Boots a kernel that records itself into the new folder `out`, and then shuts the guest down.
///
/// # Errors
/// Fails if the folder exists, a program or file is missing, or the guest does not finish in time. A failed
/// recording leaves no files.
pub fn record(out: &Path, guest: &GuestMachine) -> anyhow::Result<Recorded> {
    let folder = Folder::new(out)?;
    let (kernel, modules) = kernel(&guest.kernel)?;
    let scratch = tempfile::tempdir()?;
    let initramfs = scratch.path().join("initramfs");
    fs::write(&initramfs, root(guest, modules.as_deref())?.finish())?;
    let begun = Instant::now();
    let interrupted = interrupts()?;
    let console = folder.file("console.txt");
    let accelerators = if !guest.emulate && writable("/dev/kvm") { &["kvm", "tcg"][..] } else { &["tcg"] };
    for accelerator in accelerators {
        let mut qemu = qemu(guest, accelerator, &kernel, &initramfs, &folder.partial);
        qemu.stdin(Stdio::null())
            .stdout(File::create(&console)?)
            .stderr(File::create(folder.file("qemu.txt"))?);
        let mut qemu = qemu
            .spawn()
            .context("qemu-system-x86_64 does not start; expected qemu on PATH (Debian: qemu-system-x86)")?;
        let up = || {
            fs::read(&console).is_ok_and(|text| text.windows(BOOT_LINE.len()).any(|part| part == BOOT_LINE))
        };
        let started = Instant::now();
        let ended = wait(&mut qemu, || {
            if interrupted.load(uslab_magazine::sync::Ordering::Relaxed) {
                bail!(INTERRUPTED_MESSAGE)
            }
            if begun.elapsed() > guest.limit {
                bail!(
                    "--timeout: the guest did not shut down within {} s{}",
                    guest.limit.as_secs(),
                    last_console_line(&console)
                )
            }
            if *accelerator == "kvm" && started.elapsed() > BOOT_TIMEOUT && !up() {
                bail!(BOOT_FAILURE)
            }
            Ok(())
        });
        match ended {
            Ok(_) if unpack_serial_archive(&folder)? => break,
            // KVM may be available and still not work, if this machine is itself a guest.
            Ok(_) if *accelerator == "kvm" && !up() => {}
            Err(error) if error.to_string() == BOOT_FAILURE => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let last_line = fs::read_to_string(folder.file("qemu.txt")).unwrap_or_default();
                let last_line =
                    last_line.lines().last().map(|line| format!("; qemu: {line}")).unwrap_or_default();
                bail!(
                    "the guest stopped before the recording was complete{last_line}{}",
                    last_console_line(&console)
                )
            }
        }
    }
    for name in ["qemu.txt", PORT] {
        fs::remove_file(folder.file(name))?;
    }
    let status = folder.read("done")?;
    let text = folder.file("trace.txt");
    let trace = File::open(&text)?;
    // The file's name is removed now, its text when the trace is packed.
    for name in ["done", "trace.txt"] {
        fs::remove_file(folder.file(name))?;
    }
    folder.pack(trace)?;
    folder.finish(&status)
}

/// The file that receives the output of the guest's second serial port, which is an archive if the guest's
/// kernel has no 9p.
const PORT: &str = "port.tar";

/// Unpacks the archive that the guest sent over the serial port, if the archive exists. Returns `true` if the
/// recording is complete.
fn unpack_serial_archive(folder: &Folder) -> anyhow::Result<bool> {
    let port = folder.file(PORT);
    if fs::metadata(&port).is_ok_and(|port| port.len() > 0) {
        let mut tar = Command::new("tar");
        let status = tar.arg("-xf").arg(&port).arg("-C").arg(&folder.partial).status();
        let packed = folder.file("trace.txt.gz");
        // The guest may have ended while it was writing the archive.
        if status.context("tar does not start")?.success() && packed.exists() {
            let mut packed_trace = flate2::bufread::GzDecoder::new(BufReader::new(File::open(&packed)?));
            std::io::copy(&mut packed_trace, &mut File::create(folder.file("trace.txt"))?)?;
            fs::remove_file(packed)?;
        }
    }
    Ok(folder.file("done").exists() && folder.file("trace.txt").exists())
}

/// The first line that the guest prints.
const BOOT_LINE: &[u8] = b"uslab: the guest is up";

/// The error text for a guest that printed nothing under KVM.
const BOOT_FAILURE: &str = "the guest is not up";

fn writable(path: &str) -> bool {
    File::options().read(true).write(true).open(path).is_ok()
}

/// Returns the last line of text on a guest's console, without the firmware's cursor movements.
fn last_console_line(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty() && !line.contains('\x1b'));
    last.map_or_else(String::new, |line| format!("; its last line: {}", line.trim()))
}

fn qemu(guest: &GuestMachine, accelerator: &str, kernel: &Path, initramfs: &Path, out: &Path) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    let model = if accelerator == "kvm" { "host" } else { "qemu64,+rdrand" };
    let accelerator = if accelerator == "kvm" { "kvm" } else { "tcg,thread=multi" };
    qemu.args([
        "-accel",
        accelerator,
        "-cpu",
        model,
        "-nographic",
        "-no-reboot",
        "-nodefaults",
        "-serial",
        "stdio",
    ]);
    let mut port = std::ffi::OsString::from("file:");
    port.push(out.join(PORT));
    qemu.arg("-serial").arg(port);
    qemu.args(["-smp", &guest.cpus.to_string(), "-m", &format!("{}K", guest.memory / 1024)]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    let mut share = std::ffi::OsString::from("local,mount_tag=out,security_model=none,path=");
    share.push(out);
    let events: Vec<_> = EVENTS.map(|event| format!("kmem:{event}")).to_vec();
    let GuestMachine { buffer, append, .. } = guest;
    // On a busy machine the emulated timer is late, and the kernel's check of it would stop the boot.
    let append = format!(
        "console=ttyS0 quiet panic=-1 no_timer_check nokaslr no_hash_pointers trace_clock=global trace_buf_size={}K trace_event={} {append}",
        buffer / 1024,
        events.join(","),
    );
    qemu.arg("-virtfs").arg(share).args(["-append", &append]);
    qemu
}

/// Finds the kernel's file, and also the folder of its modules if the kernel has one.
///
/// Distributions store the kernel as `boot/vmlinuz-RELEASE` (Debian until 6.x), or as `vmlinuz` in the folder
/// of its modules (Debian from 7.x on, Fedora, Arch). Any other file is assumed to be a kernel that the user
/// built without modules.
fn kernel(given: &Path) -> anyhow::Result<(PathBuf, Option<PathBuf>)> {
    let shown = given.display();
    let kernel = if given.is_dir() {
        let mut kernels = vec![];
        for file in files(&given.join("boot"))? {
            kernels.extend(Some(file).filter(|file| release(file).is_some()));
        }
        for folder in MODULE_FOLDERS {
            let own = files(&given.join(folder))?.into_iter().map(|folder| folder.join("vmlinuz"));
            kernels.extend(own.filter(|kernel| kernel.is_file()));
        }
        // The folder `lib` may be a link to `usr/lib`.
        kernels.sort_by_cached_key(|kernel| kernel.canonicalize().ok());
        kernels.dedup_by_key(|kernel| kernel.canonicalize().ok());
        let [kernel] = &kernels[..] else {
            bail!(
                "--qemu {shown}: expected exactly one boot/vmlinuz-RELEASE or lib/modules/RELEASE/vmlinuz in this folder, found {}",
                kernels.len()
            )
        };
        kernel.clone()
    } else {
        given.to_owned()
    };
    File::open(&kernel).with_context(|| format!("--qemu {}", kernel.display()))?;
    let folder = kernel.parent().unwrap_or(Path::new("."));
    let modules = match release(&kernel) {
        Some(release) => {
            let root = folder.parent().unwrap_or(Path::new("/"));
            MODULE_FOLDERS
                .map(|folder| root.join(folder).join(release))
                .into_iter()
                .find(|path| path.is_dir())
        }
        None => Some(folder.to_owned()).filter(|folder| folder.join("kernel").is_dir()),
    };
    Ok((kernel.clone(), modules))
}

/// The folders of kernel modules, with a subfolder for each release.
const MODULE_FOLDERS: [&str; 2] = ["lib/modules", "usr/lib/modules"];

/// Returns the files in a folder; an empty list if the folder does not exist.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(vec![]);
    }
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?)
}

fn release(kernel: &Path) -> Option<&str> {
    kernel.file_name().and_then(OsStr::to_str)?.strip_prefix("vmlinuz-")
}

/// Builds the guest's root file system, and returns it as an archive.
fn root(guest: &GuestMachine, modules: Option<&Path>) -> anyhow::Result<CpioArchive> {
    let mut root = CpioArchive::default();
    for folder in ["bin", "dev", "host", "modules", "out", "proc", "sys", "tmp"] {
        root.add(folder, 0o040_755, b"");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let busybox =
        std::env::split_paths(&path).map(|folder| folder.join("busybox")).find(|path| path.is_file());
    let busybox = busybox.context("no busybox on PATH; expected a static one (Debian: busybox-static)")?;
    root.add("bin/busybox", PROGRAM, &program(&busybox)?);
    let mut command = guest.command.clone();
    for path in &guest.workload {
        let name = path
            .file_name()
            .and_then(OsStr::to_str)
            .with_context(|| format!("--workload {}", path.display()))?;
        root.add(&format!("bin/{name}"), PROGRAM, &program(path)?);
        if command.is_empty() {
            command.push(name.to_owned());
        }
    }
    let quoted: String = command.iter().map(|word| format!(" '{}'", word.replace('\'', r"'\''"))).collect();
    root.add("init", PROGRAM, format!("#!/bin/busybox sh\nset --{quoted}\n{GUEST}").as_bytes());
    root.add("steps.sh", PROGRAM, STEPS.as_bytes());
    let settings: String = guest.set.iter().map(|set| format!("{set}\n")).collect();
    root.add("settings", FILE, settings.as_bytes());
    let mut order = String::new();
    for (name, bytes) in tracing_modules(modules)? {
        order += &format!("{name}.ko\n");
        root.add(&format!("modules/{name}.ko"), FILE, &bytes);
    }
    root.add("modules/order", FILE, order.as_bytes());
    Ok(root)
}

/// Reads a script, or a statically linked program.
fn program(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    if bytes.starts_with(b"\x7fELF") && bytes.windows(8).any(|part| part == b"/ld-linu") {
        bail!(
            "{}: the program is dynamically linked, but the guest has no libraries; expected a static program or a busybox shell script",
            path.display()
        );
    }
    Ok(bytes)
}

/// Returns the modules that transfer the trace; each module follows its dependencies.
fn tracing_modules(folder: Option<&Path>) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut files = BTreeMap::new();
    let mut folders: Vec<_> = folder.map(Path::to_owned).into_iter().collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Some((name, _)) = entry.file_name().to_str().and_then(|name| name.split_once(".ko"))
            {
                files.insert(name.replace('-', "_"), entry.path());
            }
        }
    }
    let mut ordered = Vec::new();
    for name in TRANSFER_MODULES {
        modules_with_dependencies(name, &files, &mut ordered)?;
    }
    Ok(ordered)
}

fn modules_with_dependencies(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    ordered: &mut Vec<(String, Vec<u8>)>,
) -> anyhow::Result<()> {
    let Some(path) = files.get(name) else { return Ok(()) };
    if ordered.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let bytes = unpacked(path).with_context(|| path.display().to_string())?;
    for needed in needs(&bytes) {
        modules_with_dependencies(&needed, files, ordered)?;
    }
    ordered.push((name.to_owned(), bytes));
    Ok(())
}

fn unpacked(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = BufReader::new(File::open(path)?);
    match path.extension().and_then(OsStr::to_str) {
        Some("xz") => XzDecoder::new(file).read_to_end(&mut bytes)?,
        Some("gz") => flate2::bufread::GzDecoder::new(file).read_to_end(&mut bytes)?,
        Some("zst") => zstd::Decoder::with_buffer(file)?.read_to_end(&mut bytes)?,
        _ => { file }.read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

/// Returns the names of a module's dependencies.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|part| part == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = value.split(|byte| *byte == b',').filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

/// The file mode of a program.
const PROGRAM: u32 = 0o100_755;
/// The file mode of other files.
const FILE: u32 = 0o100_644;

/// An archive in the format that the kernel unpacks: cpio's "newc".
#[derive(Debug, Default)]
struct CpioArchive {
    bytes: Vec<u8>,
    files: u32,
}

impl CpioArchive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let (size, length) = (content.len(), name.len() + 1);
        // The header has number, mode, owner, group, links, time, size, four device numbers, length of the name,
        // checksum.
        let head = [self.files, mode, 0, 0, 1, 0, size as u32, 0, 0, 0, 0, length as u32, 0];
        let head: String = head.iter().map(|field| format!("{field:08x}")).collect();
        let _ = write!(self.bytes, "070701{head}{name}\0");
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_archive_has_the_cpio_format() {
        let mut archive = CpioArchive::default();
        archive.add("bin", 0o040_755, b"");
        archive.add("bin/x", PROGRAM, b"abcde");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes).expect("text");
        assert!(text.starts_with("07070100000001000041ed"), "{text}");
        // The header of 110 bytes and the name with its NUL are padded to a multiple of four, and so is the content.
        assert_eq!(text.find("abcde"), Some(116 + 116), "{text:?}");
        assert!(text[116..].starts_with("07070100000002000081ed"));
        assert_eq!(text.find("TRAILER!!!"), Some(116 + 116 + 8 + 110));
    }

    #[test]
    fn kernel_modules_load_after_their_dependencies() {
        let folder = tempfile::tempdir().expect("a folder");
        let module = |name: &str, needs: &str| {
            fs::write(folder.path().join(name), format!("\0license=GPL\0depends={needs}\0name=x\0"))
                .expect("a file");
        };
        module("virtio_pci.ko", "virtio,virtio-ring");
        module("virtio.ko", "");
        module("virtio-ring.ko", "virtio");
        module("9p.ko", "9pnet");
        module("9pnet.ko", "");
        let names: Vec<_> = tracing_modules(Some(folder.path()))
            .expect("modules")
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["virtio", "virtio_ring", "virtio_pci", "9pnet", "9p"]);
        assert_eq!(tracing_modules(None).expect("none"), []);
    }

    #[test]
    fn kernel_is_found_in_a_package_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let package = folder.path();
        fs::create_dir_all(package.join("usr/lib/modules/6.1")).expect("a folder");
        fs::create_dir(package.join("boot")).expect("a folder");
        let told = |path: &Path| kernel(path).expect_err("no kernel").to_string();
        assert!(told(package).contains(
            "expected exactly one boot/vmlinuz-RELEASE or lib/modules/RELEASE/vmlinuz in this folder, found 0"
        ));
        let file = package.join("boot/vmlinuz-6.1");
        fs::write(&file, "").expect("a file");
        let found = (file.clone(), Some(package.join("usr/lib/modules/6.1")));
        assert_eq!(
            (kernel(package).expect("a kernel"), kernel(&file).expect("a kernel")),
            (found.clone(), found)
        );
        // The layout of the packages of 7.x, of Fedora and of Arch.
        let modules = package.join("usr/lib/modules/7.2");
        fs::create_dir_all(modules.join("kernel")).expect("a folder");
        let with_modules = modules.join("vmlinuz");
        fs::write(&with_modules, "").expect("a file");
        assert!(told(package).contains("found 2"));
        fs::remove_file(&file).expect("a file");
        let found = (with_modules.clone(), Some(modules));
        assert_eq!(
            (kernel(package).expect("a kernel"), kernel(&with_modules).expect("a kernel")),
            (found.clone(), found)
        );
        let built = package.join("bzImage");
        assert!(told(&built).contains("bzImage"));
        fs::write(&built, "").expect("a file");
        assert_eq!(kernel(&built).expect("a kernel"), (built.clone(), None));
        assert!(told(&package.join("vmlinuz-7")).contains("vmlinuz-7"));
    }

    #[test]
    fn dynamically_linked_program_is_refused() {
        let told = program(Path::new("/proc/self/exe")).expect_err("tests have libraries").to_string();
        assert!(told.contains("expected a static program"), "{told}");
    }
}
