/* Connection of each thread to the server: one request, one reply. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

static __thread int socket_of_thread = -1;
static __thread int owner; /* process that opened it: a child process opens another one */
static __thread line answer, request_line;
static __thread char error_text[1024];
static system_info info;
static int introduced; /* process of these data */
static pthread_mutex_t introduction = PTHREAD_MUTEX_INITIALIZER;

_Noreturn void give_up(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("clusim: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(2);
}

const char *last_error(void) { return error_text; }

static void reserve(line *to, size_t more) {
    if (to->length + more <= to->room) return;
    to->room = 2 * (to->length + more);
    to->text = realloc(to->text, to->room);
    if (to->text == NULL) give_up("no memory for a request");
}

void put(line *to, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, format, args);
    reserve(to, (size_t)length + 1);
    vsnprintf(to->text + to->length, (size_t)length + 1, format, again);
    to->length += (size_t)length;
    va_end(again);
    va_end(args);
}

static void open_socket(void) {
    const char *path = getenv("CLUSIM_SERVER");
    if (path == NULL)
        give_up("no simulated system: start the program with `clusim exec TOPOLOGY PROGRAM`");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) give_up("CLUSIM_SERVER: %s is too long", path);
    strcpy(address.sun_path, path);
    if (socket_of_thread >= 0) close(socket_of_thread);
    socket_of_thread = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    owner = getpid();
    if (socket_of_thread < 0 ||
        connect(socket_of_thread, (struct sockaddr *)&address, sizeof address) != 0)
        give_up("no server at %s: %s", path, strerror(errno));
}

static void send_all(const char *text, size_t length) {
    while (length > 0) {
        const ssize_t sent = send(socket_of_thread, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) give_up("the server has ended");
        text += sent;
        length -= (size_t)sent;
    }
}

static void receive_line(void) {
    answer.length = 0;
    do {
        reserve(&answer, 4096);
        const ssize_t got =
            recv(socket_of_thread, answer.text + answer.length, answer.room - answer.length, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) give_up("the server has ended");
        answer.length += (size_t)got;
    } while (answer.text[answer.length - 1] != '\n');
    answer.text[answer.length - 1] = '\0';
}

static reply read_reply(void) {
    reply result = {0};
    char *at;
    result.code = (int)strtol(answer.text, &at, 10);
    const long long time_ps = strtoll(at, &at, 10);
    if (time_ps > 0) set_now_ps(time_ps);
    result.words = at + (*at == ' ');
    for (at = result.words; result.count < 16;) {
        char *end;
        const long long value = strtoll(at, &end, 10);
        if (end == at || (*end != ' ' && *end != '\0')) break;
        result.values[result.count++] = value;
        at = end;
    }
    if (result.code != 0) {
        snprintf(error_text, sizeof error_text, "%s", result.words);
        if (result.code != CUDA_NOT_READY) fprintf(stderr, "clusim: %s\n", result.words);
    }
    return result;
}

static reply exchange(line *request) {
    put(request, "\n");
    send_all(request->text, request->length);
    request->length = 0;
    receive_line();
    return read_reply();
}

static int environment_number(const char *const *names) {
    for (; *names != NULL; names++) {
        const char *value = getenv(*names);
        if (value != NULL) return atoi(value);
    }
    return -1;
}

static void introduce(void) {
    static const char *const rank[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                       "SLURM_PROCID", NULL};
    static const char *const size[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};
    for (char **each = environ; *each != NULL; each++)
        if (strncmp(*each, "NCCL_", 5) == 0 && strncmp(*each, "NCCL_TESTS_", 11) != 0) {
            put(&request_line, "env %d %s", getpid(), *each);
            exchange(&request_line);
        }
    put(&request_line, "hello %d %d %d", getpid(), environment_number(rank),
        environment_number(size));
    const reply got = exchange(&request_line);
    if (got.code != 0) _exit(2);
    const long long *v = got.values;
    info = (system_info){
        .start_ps = v[0], .real_offset_ps = v[1], .wake_ps = v[2], .memory_bytes = (uint64_t)v[3]};
    info.gpus = (int)v[4], info.version = (int)v[5], info.sms = (int)v[6];
    info.major = (int)v[7], info.minor = (int)v[8], info.node = (int)v[9];
    const char *names = strchr(got.words, '|');
    if (names == NULL || sscanf(names, "|%127[^|]|%127[^|]", info.host, info.gpu) != 2)
        give_up("bad answer of the server");
    start_clock(info.start_ps, info.real_offset_ps, info.wake_ps);
}

const system_info *the_system(void) {
    if (owner != getpid()) socket_of_thread = -1;
    if (socket_of_thread >= 0) return &info;
    open_socket();
    pthread_mutex_lock(&introduction);
    if (introduced != getpid()) {
        introduce();
        introduced = getpid();
    } else {
        put(&request_line, "thread %d", getpid());
        exchange(&request_line);
    }
    pthread_mutex_unlock(&introduction);
    return &info;
}

reply ask_line(line *request) {
    the_system();
    return exchange(request);
}

reply ask(const char *format, ...) {
    the_system();
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, format, args);
    reserve(&request_line, (size_t)length + 1);
    vsnprintf(request_line.text, (size_t)length + 1, format, again);
    request_line.length = (size_t)length;
    va_end(again);
    va_end(args);
    return exchange(&request_line);
}
