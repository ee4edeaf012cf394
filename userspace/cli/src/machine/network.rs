// SPDX-License-Identifier: MIT OR Apache-2.0

//! Network devices that file servers are reached by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use procfs::process::MountInfo;
use vramio::PciAddress;

use super::Root;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// What the kernel calls it, such as `eth0`.
    pub interface: String,
    /// Its PCI function; none of one that is made of others, or of none.
    pub function: Option<PciAddress>,
}

/// The device by which a mount's server is reached now, where the mount names its server by
/// address (`addr=`, as NFS and SMB do). A mount over several devices has others, too.
pub fn of_mount(root: &Root, mount: &MountInfo) -> Option<Network> {
    let interface = interface_to(server(mount)?)?;
    Some(named(root, interface))
}

/// The server's address.
fn server(mount: &MountInfo) -> Option<IpAddr> {
    mount.super_options.get("addr")?.as_ref()?.parse().ok()
}

/// The interface that the kernel would send from. Nothing is sent.
fn interface_to(server: IpAddr) -> Option<String> {
    let any = match server {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    // The port of NFS; any would do.
    socket.connect(SocketAddr::new(server, 2049)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    let mut interfaces = getifaddrs().ok()?;
    interfaces
        .find(|interface| {
            let address = interface.address.as_ref();
            let v4 = address.and_then(|address| address.as_sockaddr_in());
            let v6 = address.and_then(|address| address.as_sockaddr_in6());
            v4.is_some_and(|found| IpAddr::V4(found.ip()) == own)
                || v6.is_some_and(|found| IpAddr::V6(found.ip()) == own)
        })
        .map(|interface| interface.interface_name)
}

fn named(root: &Root, interface: String) -> Network {
    let device = root.path(format!("/sys/class/net/{interface}/device"));
    let function = device.canonicalize().ok().and_then(|place| {
        let name = place.file_name()?.to_str()?;
        name.parse().ok()
    });
    Network {
        interface,
        function,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::root;
    use std::os::unix::fs::symlink;

    fn mount(options: &str) -> MountInfo {
        let line = format!("36 35 0:99 / /data rw - nfs4 server:/share {options}");
        MountInfo::from_line(&line).expect("a mount")
    }

    #[test]
    fn a_server_is_reached_by_an_interface() {
        assert_eq!(server(&mount("rw,addr=10.1.2.3")), "10.1.2.3".parse().ok());
        assert_eq!(server(&mount("rw,addr=fd00::1")), "fd00::1".parse().ok());
        for none in ["rw", "rw,addr=server", "rw,addr"] {
            assert_eq!(server(&mount(none)), None);
        }
        let (_directory, root) = root(&[]);
        let found = of_mount(&root, &mount("rw,addr=127.0.0.1"));
        let loopback = Network {
            interface: "lo".to_owned(),
            function: None,
        };
        assert_eq!(found, Some(loopback));
    }

    #[test]
    fn an_interface_has_its_function() {
        let place = "/sys/devices/pci0000:00/0000:00:01.0/0000:05:00.0";
        let (_directory, root) = root(&[
            (&format!("{place}/vendor"), "0x15b3"),
            ("/sys/class/net/ib0/type", "32"),
            ("/sys/class/net/bond0/type", "1"),
        ]);
        let link = root.path("/sys/class/net/ib0/device");
        symlink(root.path(place), link).expect("a link");
        let function = |name: &str| named(&root, name.to_owned()).function;
        assert_eq!(function("ib0"), "0000:05:00.0".parse().ok());
        assert_eq!(function("bond0"), None);
    }
}
