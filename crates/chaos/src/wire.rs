//! Hosts of their own for workers, where that is possible: a network namespace each, on a cable that can be pulled out.
//!
//! All of it lies in a namespace of the campaign's own, so that nothing of it is left when the campaign has ended, however.

use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const BRIDGE: &str = "chaos0";

/// Of the campaign, on the cables' other end.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

const MASK: &str = "/24";

/// The first host's last byte.
const FIRST_HOST: u8 = 2;

/// Are there namespaces, and what they are joined with?
pub(crate) fn is_possible() -> bool {
    let all = format!(
        "ip link add {BRIDGE} type bridge && ip link add v0 type veth peer name v1 && command -v nsenter"
    );
    let probe = ["--net", "--", "sh", "-c", &all];
    let probe = Command::new("unshare").args(probe).stdin(Stdio::null()).stdout(Stdio::null()).output();
    probe.is_ok_and(|probe| probe.status.success())
}

/// Begins this program again, in a network of its own.
///
/// # Errors
/// It goes on here: that is not possible.
pub(crate) fn enter(flag: &str) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    Command::new("unshare")
        .args(["--net", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg(flag)
        .exec()
}

/// What is in it at first.
///
/// # Errors
/// One line: what cannot be done.
pub(crate) fn furnish() -> Result<(), String> {
    ip("link set lo up")?;
    ip(&format!("link add {BRIDGE} type bridge"))?;
    ip(&format!("addr add {HERE}{MASK} dev {BRIDGE}"))?;
    ip(&format!("link set {BRIDGE} up"))
}

fn ip(arguments: &str) -> Result<(), String> {
    run("ip", arguments)
}

/// It takes milliseconds, so nobody is kept waiting.
fn run(program: &str, arguments: &str) -> Result<(), String> {
    let ran = Command::new(program).args(arguments.split(' ')).stdin(Stdio::null()).output();
    let said = match ran {
        Ok(ran) if ran.status.success() => return Ok(()),
        Ok(ran) => String::from_utf8_lossy(&ran.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!("{program} {arguments}: {said}"))
}

/// A host with a cable to the campaign. It is gone when dropped.
pub(crate) struct Wire {
    /// Keeps the namespace; ends when its input does, so with the campaign at the latest.
    holder: Child,
    device: String,
    address: Ipv4Addr,
}

impl Wire {
    /// # Errors
    /// One line: what cannot be done.
    pub(crate) fn lay(number: usize) -> Result<Self, String> {
        let last = u8::try_from(number).ok().and_then(|number| number.checked_add(FIRST_HOST));
        let last = last.filter(|last| *last < u8::MAX).ok_or("too many hosts for a network")?;
        let [a, b, c, _] = HERE.octets();
        // What it says comes after the namespace is there.
        let holder = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut wire =
            Self { holder, device: format!("veth{number}"), address: Ipv4Addr::new(a, b, c, last) };
        wire.connect()?;
        Ok(wire)
    }

    fn connect(&mut self) -> Result<(), String> {
        let mut begun = [0];
        let out = self.holder.stdout.as_mut().ok_or("no output")?;
        io::Read::read_exact(out, &mut begun).map_err(|error| format!("unshare: {error}"))?;
        let Self { holder, device, address } = self;
        let id = holder.id();
        ip(&format!("link add {device} type veth peer name eth0 netns {id}"))?;
        ip(&format!("link set {device} master {BRIDGE} up"))?;
        let inside = |arguments: &str| run("nsenter", &format!("--target {id} --net -- ip {arguments}"));
        inside("link set lo up")?;
        inside(&format!("addr add {address}{MASK} dev eth0"))?;
        inside("link set eth0 up")
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What a command begins with that runs there. It replaces itself by the rest, so signals arrive.
    pub(crate) fn prefix(&self) -> Vec<String> {
        ["nsenter", "--target", &self.holder.id().to_string(), "--net", "--"].map(str::to_owned).to_vec()
    }

    /// Pulls the cable out, or puts it back in.
    ///
    /// # Errors
    /// One line: what cannot be done.
    pub(crate) fn plug(&self, is_in: bool) -> Result<(), String> {
        ip(&format!("link set {} {}", self.device, if is_in { "up" } else { "down" }))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
