/* Sends tokens when they are due, and notes when it did. See pump.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

struct stream {
    int fd;
    int next; /* token to be sent next */
    int last; /* tokens from this one on are the caller's */
    int short_by; /* bytes of the token before `next` that the socket did not take; -1: it broke */
    const char *const *data;
    const int32_t *size;
    const int64_t *due; /* ns, CLOCK_MONOTONIC, as all moments here */
    int64_t *before;
    int64_t *after;
};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Send what is due before `until`, in the order in which it is due. The index of a stream that the
   caller has to see to (its last token is next, or the socket did not take all); -1: none. */
int pump(struct stream **streams, int count, int64_t until)
{
    /* The streams' next moments side by side: the search for the earliest is what a token costs
       beside its send. */
    int64_t dues[count];
    for (int i = 0; i < count; i++)
        dues[i] = streams[i]->due[streams[i]->next];
    for (;;) {
        int64_t due = until, at;
        int which = -1;
        for (int i = 0; i < count; i++) {
            if (dues[i] < due) {
                due = dues[i];
                which = i;
            }
        }
        if (which < 0)
            return -1;
        struct stream *first = streams[which];
        while ((at = now()) < due)
            ;
        int k = first->next++;
        ssize_t sent = send(first->fd, first->data[k], first->size[k], MSG_DONTWAIT | MSG_NOSIGNAL);
        int why = errno;
        first->before[k] = at;
        first->after[k] = now();
        if (sent < 0)
            first->short_by = why == EAGAIN || why == EWOULDBLOCK ? first->size[k] : -1;
        else
            first->short_by = first->size[k] - (int)sent;
        if (first->short_by || first->next >= first->last)
            return which;
        dues[which] = first->due[first->next];
    }
}
