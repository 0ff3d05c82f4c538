//! Runs the command `uslab` on a terminal.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use nix::poll::{PollFd, PollFlags, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::tcgetattr;

/// Runs `uslab` on a terminal of 80 by 24 characters, and calls `act` after `uslab` has drawn its first screen. Returns
/// the exit code, the output, and `true` if `uslab` has restored the state of the terminal.
pub(crate) fn run_on_terminal(args: &[&str], act: impl FnOnce(&mut File)) -> (Option<i32>, String, bool) {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    let before = tcgetattr(&pty.slave).unwrap();
    let slave = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut command = Command::new(uslab_tests::uslab());
    command.args(args).env("TERM", "xterm").stdin(slave()).stdout(slave()).stderr(slave());
    let mut child = command.spawn().unwrap();
    let (mut terminal, mut act) = (File::from(pty.master), Some(act));
    let (mut text, mut some) = (Vec::new(), [0; 4096]);
    let mut read = |terminal: &mut File, text: &mut Vec<u8>| {
        // The timeout in milliseconds lets the loop notice when the program has exited.
        let there = poll(&mut [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)], 20_u8).unwrap() > 0;
        if there {
            let read = terminal.read(&mut some).unwrap();
            text.extend_from_slice(&some[..read]);
        }
        there
    };
    let status = loop {
        let ended = child.try_wait().unwrap();
        let more = read(&mut terminal, &mut text);
        if let Some(status) = ended
            && !more
        {
            break status;
        }
        // The last row of each screen contains `quit`. Blanks are not written to an empty screen.
        if String::from_utf8_lossy(&text).contains("quit")
            && let Some(act) = act.take()
        {
            act(&mut terminal);
        }
    };
    let restored = tcgetattr(&pty.slave).unwrap() == before;
    (status.code(), String::from_utf8_lossy(&text).into_owned(), restored)
}
