//! The fixed newstyle handshake, up to the transmission phase.

use std::io::{self, Read, Write};

use super::wire::{
    self, CLIENT_FIXED, CLIENT_NO_ZEROES, GREETING, OPTION_BYTES, OPTION_MAX, OptionHeader, option,
    reply,
};

/// Options that a client may send, so that nobody keeps the gateway busy with them.
const OPTIONS_MAX: usize = 256;

/// Lets the client choose the export, which has any name. False if the client only looked.
///
/// # Errors
/// The socket's error; `InvalidData` if the client does not keep to the protocol.
pub(super) fn shake(stream: &mut (impl Read + Write), bytes: u64, block: u32) -> io::Result<bool> {
    stream.write_all(&GREETING)?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !(CLIENT_FIXED | CLIENT_NO_ZEROES) != 0 {
        return Err(breach("unknown flags"));
    }
    for _ in 0..OPTIONS_MAX {
        let mut header = [0; OPTION_BYTES];
        stream.read_exact(&mut header)?;
        let header = OptionHeader::read(&header).ok_or_else(|| breach("no option"))?;
        let data = read_data(stream, header.len)?;
        let mut answer =
            |kind, data: &[u8]| stream.write_all(&wire::option_reply(header.option, kind, data));
        let Some(data) = data else {
            answer(reply::TOO_BIG, &[])?;
            continue;
        };
        match header.option {
            option::EXPORT_NAME => {
                stream.write_all(&wire::old_export(bytes, flags & CLIENT_NO_ZEROES == 0))?;
                return Ok(true);
            }
            option::ABORT => {
                // The client may have left without waiting.
                let _ = answer(reply::ACK, &[]);
                return Ok(false);
            }
            option::LIST if data.is_empty() => {
                answer(reply::SERVER, &[0; 4])?;
                answer(reply::ACK, &[])?;
            }
            option::INFO | option::GO if wire::is_info(&data) => {
                answer(reply::INFO, &wire::export_info(bytes))?;
                answer(reply::INFO, &wire::block_info(block))?;
                answer(reply::ACK, &[])?;
                if header.option == option::GO {
                    return Ok(true);
                }
            }
            option::LIST | option::INFO | option::GO => answer(reply::INVALID, &[])?,
            _ => answer(reply::UNSUPPORTED, &[])?,
        }
    }
    Err(breach("too many options"))
}

/// The data of an option; `None`, with the data read, if it is too long.
fn read_data(stream: &mut impl Read, len: usize) -> io::Result<Option<Vec<u8>>> {
    if len > OPTION_MAX {
        let read = io::copy(&mut stream.take(len as u64), &mut io::sink())?;
        return if read == len as u64 { Ok(None) } else { Err(breach("half an option")) };
    }
    let mut data = vec![0; len];
    stream.read_exact(&mut data)?;
    Ok(Some(data))
}

fn breach(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the NBD client sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that has said everything beforehand.
    struct Said {
        input: io::Cursor<Vec<u8>>,
        output: Vec<u8>,
    }

    impl Read for Said {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.input.read(to)
        }
    }

    impl Write for Said {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            self.output.write(from)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn says(options: &[(u32, &[u8])]) -> (io::Result<bool>, Vec<u8>) {
        let mut input = 3_u32.to_be_bytes().to_vec();
        for (option, data) in options {
            input.extend(b"IHAVEOPT");
            input.extend(option.to_be_bytes());
            input.extend((data.len() as u32).to_be_bytes());
            input.extend(*data);
        }
        let mut said = Said { input: io::Cursor::new(input), output: Vec::new() };
        let result = shake(&mut said, 1 << 20, 512);
        (result, said.output.split_off(GREETING.len()))
    }

    #[test]
    fn go_tells_the_export_and_ends_the_handshake() {
        let (result, output) = says(&[(option::GO, b"\0\0\0\0\0\0")]);
        assert!(result.unwrap());
        assert_eq!(output[20..32], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 1, 0x6d]);
        assert_eq!(output.len(), (20 + 12) + (20 + 14) + 20);
        assert_eq!(output[output.len() - 8..output.len() - 4], reply::ACK.to_be_bytes());
    }

    #[test]
    fn unknown_and_bad_options_are_refused_and_the_handshake_goes_on() {
        let long = vec![0; OPTION_MAX + 1];
        let options: [(u32, &[u8]); 5] = [
            (8, &[]),
            (option::GO, b"xx"),
            (option::INFO, &long),
            (option::LIST, &[]),
            (option::EXPORT_NAME, b"any"),
        ];
        let (result, output) = says(&options);
        assert!(result.unwrap());
        let kind = |at: usize| u32::from_be_bytes(output[at + 12..at + 16].try_into().unwrap());
        assert_eq!(
            [kind(0), kind(20), kind(40)],
            [reply::UNSUPPORTED, reply::INVALID, reply::TOO_BIG]
        );
        assert_eq!(output.len(), 60 + 24 + 20 + 10);
    }

    #[test]
    fn a_client_that_stops_or_talks_nonsense_ends() {
        assert!(!says(&[(option::ABORT, &[])]).0.unwrap());
        assert!(says(&[]).0.is_err());
        let many: Vec<(u32, &[u8])> = vec![(8, &[]); OPTIONS_MAX + 1];
        assert!(says(&many).0.is_err());
    }
}
