//! Who a client is to a NATS server.

use super::Error;
use super::protocol::{Connect, Info};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use std::fmt;

/// The first bytes of a user's seed and public key, whose texts begin with `SU` and `U`.
const SEED_PREFIX: u8 = 18 << 3;
const USER_PREFIX: u8 = 20 << 3;

/// Prefix, kind, key, checksum.
const SEED_BYTES: usize = 36;

/// What is shown to the server.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    None,
    Token(String),
    Password {
        user: String,
        password: String,
    },
    /// The server knows the public key.
    Key(Seed),
    /// The server knows who signed the token.
    Credentials {
        jwt: String,
        seed: Seed,
    },
}

impl Login {
    /// What is in a file of credentials, as NATS' tools write them.
    ///
    /// # Errors
    /// What is missing or malformed.
    pub fn from_credentials(text: &str) -> Result<Self, String> {
        let part = |name: &str| {
            let mut lines = text.lines().skip_while(|line| !line.contains(&format!("BEGIN {name}")));
            lines.next().and_then(|_| lines.map(str::trim).find(|line| !line.is_empty()))
        };
        let missing = |name: &str| format!("expected a part `BEGIN {name}`, found none");
        let jwt = part("NATS USER JWT").ok_or_else(|| missing("NATS USER JWT"))?;
        let seed = part("USER NKEY SEED").ok_or_else(|| missing("USER NKEY SEED"))?;
        Ok(Self::Credentials { jwt: jwt.to_owned(), seed: Seed::parse(seed)? })
    }

    /// What to look at after the server turned us away.
    pub(super) fn advice(&self) -> &'static str {
        match self {
            Self::None => {
                "it wants nats.username and nats.password, nats.token, nats.nkey or nats.credentials_file, \
                 and none is set"
            }
            Self::Token(_) => "look at nats.token",
            Self::Password { .. } => "look at nats.username and nats.password",
            Self::Key(_) => "look at nats.nkey",
            Self::Credentials { .. } => "look at nats.credentials_file",
        }
    }

    /// Fills in what is shown to a server that greeted with `info`.
    ///
    /// # Errors
    /// It gives nothing to sign.
    pub(super) fn show(&self, connect: &mut Connect, info: &Info) -> Result<(), Error> {
        let sign = |seed: &Seed| match &info.nonce {
            Some(nonce) => seed.sign(nonce.as_bytes()),
            None => Err(Error::Refused(format!("it asks for no key; {}", self.advice()))),
        };
        match self {
            Self::None => {}
            Self::Token(token) => connect.auth_token = Some(token.clone()),
            Self::Password { user, password } => {
                connect.user = Some(user.clone());
                connect.pass = Some(password.clone());
            }
            Self::Key(seed) => {
                connect.nkey = Some(seed.public()?);
                connect.sig = Some(sign(seed)?);
            }
            Self::Credentials { jwt, seed } => {
                connect.jwt = Some(jwt.clone());
                connect.sig = Some(sign(seed)?);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token(..)",
            Self::Password { .. } => "Password(..)",
            Self::Key(_) => "Key(..)",
            Self::Credentials { .. } => "Credentials(..)",
        })
    }
}

/// A user's secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    /// Base 32 of prefix, kind, key and checksum, as NATS' tools write it.
    ///
    /// # Errors
    /// It is malformed, or not a user's.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fault = || "expected a user's seed, `SU` and 56 letters and digits".to_owned();
        let bytes = from_base32(text.trim()).filter(|bytes| bytes.len() == SEED_BYTES).ok_or_else(fault)?;
        let (body, sum) = bytes.split_at(SEED_BYTES - 2);
        let (head, key) = body.split_at(2);
        if sum != checksum(body).to_le_bytes() {
            return Err("expected a user's seed, found one with a wrong checksum".to_owned());
        }
        if head != [SEED_PREFIX | USER_PREFIX >> 5, USER_PREFIX << 3] {
            return Err(fault());
        }
        key.try_into().map(Self).map_err(|_| fault())
    }

    fn pair(&self) -> Result<Ed25519KeyPair, Error> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&self.0);
        pair.map_err(|error| Error::Refused(format!("the seed of nats.nkey is no key: {error}")))
    }

    fn public(&self) -> Result<String, Error> {
        let mut bytes = vec![USER_PREFIX];
        bytes.extend_from_slice(self.pair()?.public_key().as_ref());
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        Ok(to_base32(&bytes))
    }

    fn sign(&self, message: &[u8]) -> Result<String, Error> {
        Ok(to_base64url(self.pair()?.sign(message).as_ref()))
    }
}

/// CRC-16/XMODEM.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0u16, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const BASE64URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// `width` bits a letter, without padding (RFC 4648).
fn encode(bytes: &[u8], alphabet: &[u8], width: u32) -> String {
    let (mut text, mut held, mut bits) = (String::new(), 0u32, 0);
    let mask = (1u32 << width) - 1;
    let mut letter = |value: u32| {
        let found = alphabet.get((value & mask) as usize).copied().unwrap_or_default();
        text.push(char::from(found));
    };
    for byte in bytes {
        held = (held << 8 | u32::from(*byte)) & 0xffff;
        bits += 8;
        while bits >= width {
            bits -= width;
            letter(held >> bits);
        }
    }
    if bits > 0 {
        letter(held << (width - bits));
    }
    text
}

fn to_base32(bytes: &[u8]) -> String {
    encode(bytes, BASE32, 5)
}

fn to_base64url(bytes: &[u8]) -> String {
    encode(bytes, BASE64URL, 6)
}

fn from_base32(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0u32, 0);
    for letter in text.bytes() {
        let value = BASE32.iter().position(|known| *known == letter)?;
        held = (held << 5 | u32::try_from(value).ok()?) & 0xffff;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A seed of no account anywhere.
    pub(in super::super) fn seed(byte: u8) -> (String, Seed) {
        let mut bytes = vec![SEED_PREFIX | USER_PREFIX >> 5, USER_PREFIX << 3];
        bytes.extend_from_slice(&[byte; 32]);
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        let text = to_base32(&bytes);
        let seed = Seed::parse(&text).unwrap();
        (text, seed)
    }

    pub(in super::super) fn public(seed: &Seed) -> String {
        seed.public().unwrap()
    }

    /// The public key of an operator (`O`) or an account (`A`) with this secret key.
    pub(in super::super) fn public_as(letter: u8, seed: &Seed) -> String {
        let mut bytes = vec![(letter - b'A') << 3];
        bytes.extend_from_slice(seed.pair().unwrap().public_key().as_ref());
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        to_base32(&bytes)
    }

    /// A token in which `issuer`, whose secret key is `seed`, says `claims` about `subject`.
    pub(in super::super) fn token(issuer: &str, seed: &Seed, subject: &str, claims: &str) -> String {
        let head = to_base64url(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
        let body =
            format!(r#"{{"jti":"x","iat":1,"iss":"{issuer}","sub":"{subject}","name":"n","nats":{claims}}}"#);
        let signed = format!("{head}.{}", to_base64url(body.as_bytes()));
        format!("{signed}.{}", seed.sign(signed.as_bytes()).unwrap())
    }

    #[test]
    fn texts_and_sums_are_those_of_their_standards() {
        assert_eq!(checksum(b"123456789"), 0x31c3);
        assert_eq!(to_base32(b"foobar"), "MZXW6YTBOI");
        assert_eq!(from_base32("MZXW6YTBOI").unwrap(), b"foobar");
        assert_eq!(to_base64url(&[0xfb, 0xff, 0xfe, 0x01]), "-__-AQ");
        let (text, seed) = seed(7);
        assert!(text.starts_with("SU") && text.len() == 58 && public(&seed).starts_with('U'));
    }

    #[test]
    fn what_is_no_seed_is_refused_without_being_shown() {
        let (text, _) = seed(7);
        let swapped = text.replace(&text[20..21], if &text[20..21] == "A" { "B" } else { "A" });
        for wrong in [&text[..57], &swapped, "", "SUA1", &text.to_lowercase()] {
            let error = Seed::parse(wrong).err().unwrap();
            assert!(error.starts_with("expected a user's seed"), "{error}");
        }
    }

    #[test]
    fn credentials_are_read_as_the_tools_write_them() {
        let (text, seed) = seed(9);
        let file = format!(
            "-----BEGIN NATS USER JWT-----\r\na.b.c\r\n------END NATS USER JWT------\r\n\r\n* words *\n\
             -----BEGIN USER NKEY SEED-----\n{text}\n------END USER NKEY SEED------\n"
        );
        let read = Login::from_credentials(&file).unwrap();
        assert!(read == Login::Credentials { jwt: "a.b.c".into(), seed });
        assert!(Login::from_credentials("a.b.c").unwrap_err().contains("BEGIN NATS USER JWT"));
    }
}
