//! Several answers to one request, streamed together.

use std::task::{Context, Poll};

use tokio::sync::mpsc::Receiver;

use super::job::JobEvent;

/// Event streams of the answers. The reader must read all streams, because an unread answer is cancelled. Dropping
/// this value cancels all answers.
#[derive(Debug, Default)]
pub struct Choices {
    /// One receiver per choice. `None` for a choice that has ended.
    receivers: Vec<Option<Receiver<JobEvent>>>,
    /// Index of the choice that is polled first. The index rotates, for fairness.
    next: usize,
}

/// Number of a choice, with its event. The event is `None` if the choice was cancelled because its events were not
/// read.
pub type ChoiceEvent = (usize, Option<JobEvent>);

impl Choices {
    /// Creates the choices whose events come from `receivers`.
    pub fn new(receivers: Vec<Receiver<JobEvent>>) -> Self {
        Choices { receivers: receivers.into_iter().map(Some).collect(), next: 0 }
    }

    /// Returns the number of choices.
    pub fn len(&self) -> usize {
        self.receivers.len()
    }

    /// True if there are no choices.
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty()
    }

    /// Polls for the next event of any choice. Returns `Ready(None)` if all choices have ended.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<ChoiceEvent>> {
        let mut is_over = true;
        for index in self.order() {
            let Some(receiver) = &mut self.receivers[index] else { continue };
            is_over = false;
            if let Poll::Ready(event) = receiver.poll_recv(cx) {
                return Poll::Ready(Some(self.told(index, event)));
            }
        }
        if is_over { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Waits for the next event of any choice. `None` if all choices have ended.
    pub async fn next(&mut self) -> Option<ChoiceEvent> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (next, len) = (self.next, self.receivers.len());
        (0..len).map(move |step| (next + step) % len)
    }

    fn told(&mut self, index: usize, event: Option<JobEvent>) -> ChoiceEvent {
        let is_last =
            !matches!(event, Some(JobEvent::Token(_) | JobEvent::Progress(_) | JobEvent::Prompt(_)));
        if is_last {
            self.receivers[index] = None;
        }
        self.next = index + 1;
        (index, event)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::job::Piece;

    fn token(token: i32) -> JobEvent {
        JobEvent::Token(Piece { token, text: String::new(), likelihood: None })
    }

    #[test]
    fn each_has_its_turn_and_its_end() {
        let ((one, first), (other, second)) = (mpsc::channel(8), mpsc::channel(8));
        let mut choices = Choices::new(vec![first, second]);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(choices.poll_next(&mut cx).is_pending());
        for number in 0..2 {
            one.try_send(token(number)).expect("room");
            other.try_send(token(10 + number)).expect("room");
        }
        one.try_send(JobEvent::Failed("it broke".to_string())).expect("room");
        drop(other);
        let mut told = Vec::new();
        while let Poll::Ready(Some((index, event))) = choices.poll_next(&mut cx) {
            told.push((
                index,
                match event {
                    Some(JobEvent::Token(piece)) => piece.token,
                    Some(JobEvent::Failed(_)) => -1,
                    _ => -2,
                },
            ));
        }
        assert_eq!(told, [(0, 0), (1, 10), (0, 1), (1, 11), (0, -1), (1, -2)]);
        assert!(matches!(choices.poll_next(&mut cx), Poll::Ready(None)));
    }
}
