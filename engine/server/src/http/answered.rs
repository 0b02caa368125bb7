//! Response body that records when it has been written completely.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Error;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};

use crate::admission::{ConnectionPhase, ConnectionState};

/// Wraps `response` so that its connection becomes idle once the body has been written.
pub fn answered(response: Response, state: &Arc<ConnectionState>) -> Response {
    let answering = Answering(Arc::clone(state));
    response.map(|body| Body::new(Answered { body, _answering: answering }))
}

/// Body that updates the connection when it is dropped, even if the client disconnects early.
struct Answered {
    body: Body,
    _answering: Answering,
}

struct Answering(Arc<ConnectionState>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.set(ConnectionPhase::Resting);
    }
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
