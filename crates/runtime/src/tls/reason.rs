//! Why two sides of TLS do not come together.

use rustls::{AlertDescription, CertificateError, Error};
use std::io;

/// In words, if it is a fault of TLS.
pub fn reason(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidMessage(_) => "the other side does not speak TLS, this side does".to_owned(),
        Error::NoCertificatesPresented => {
            "the other side showed no certificate, and is asked for one".to_owned()
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the certificate of the other side is of no authority that is trusted here".to_owned()
        }
        Error::InvalidCertificate(fault) => format!("the certificate of the other side: {fault}"),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the other side asks for a certificate, and none is set here".to_owned()
        }
        Error::AlertReceived(AlertDescription::UnknownCA) => {
            "the other side does not trust the authority of the certificate that is shown here".to_owned()
        }
        Error::AlertReceived(alert) => format!("the other side refused: {alert:?}"),
        other => other.to_string(),
    })
}
