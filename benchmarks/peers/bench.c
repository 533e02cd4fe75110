// nats.c's side of the benchmarks: one run of one path, its time as JSON on standard output.
//
//   bench ordered URL STREAM SUBJECT COUNT          ordered push consumer, callback
//   bench fetch   URL STREAM SUBJECT COUNT BATCH    pull consumer without acknowledgements
//   bench sub     URL SUBJECT COUNT CREDIT          core subscription; a credit after each CREDIT messages
//   bench pub     URL PREFIX COUNT SIZE             core publish, flushed
//   bench jspub   URL PREFIX COUNT SIZE WINDOW IDS  js_PublishAsync, IDS 0 or 1

#include <nats/nats.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUBJECTS 50000
#define TIMEOUT 60000

static void check(natsStatus status, const char *what)
{
    if (status == NATS_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(status));
    nats_PrintLastErrorStack(stderr);
    exit(1);
}

static void report(int64_t start, int64_t count)
{
    printf("{\"seconds\": %.6f, \"messages\": %lld}\n", (double)(nats_NowInNanoSeconds() - start) / 1e9, (long long)count);
}

typedef struct
{
    natsConnection *connection;
    int64_t wanted;
    int64_t credit; // 0: nobody wants to know
    _Atomic int64_t received;
    int64_t end;
} Receiver;

static void receive(natsConnection *connection, natsSubscription *subscription, natsMsg *message, void *closure)
{
    Receiver *r = closure;
    int64_t received = r->received + 1;
    natsMsg_Destroy(message);
    if (r->credit && received % r->credit == 0)
        natsConnection_PublishString(r->connection, "bench.credit", "");
    if (received == r->wanted)
        r->end = nats_NowInNanoSeconds();
    r->received = received;
}

static void wait_for(Receiver *r, int64_t start)
{
    int64_t before = -1;
    for (int silent = 0; r->received < r->wanted; nats_Sleep(1))
    {
        silent = r->received == before ? silent + 1 : 0;
        before = r->received;
        if (silent > TIMEOUT)
            check(NATS_TIMEOUT, "receiving");
    }
    printf("{\"seconds\": %.6f, \"messages\": %lld}\n", (double)(r->end - start) / 1e9, (long long)r->wanted);
}

static char **make_subjects(const char *prefix)
{
    static const char *regions[] = {"eu", "us", "apac", "latam"};
    static const char *events[] = {"created", "paid", "packed", "shipped", "delivered", "returned"};
    char **subjects = malloc(SUBJECTS * sizeof(char *));
    for (long i = 0; i < SUBJECTS; i++)
    {
        subjects[i] = malloc(128);
        snprintf(subjects[i], 128, "%sorders.%s.%05ld.%s", prefix, regions[i % 4], i * 7919 % 50000, events[i % 6]);
    }
    return subjects;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    const char *mode = argv[1];
    natsOptions *options = NULL;
    natsConnection *connection = NULL;
    natsSubscription *subscription = NULL;
    jsCtx *js = NULL;
    jsErrCode code = 0;

    check(natsOptions_Create(&options), "options");
    check(natsOptions_SetURL(options, argv[2]), "URL");
    check(natsConnection_Connect(&connection, options), "connect");

    if (strcmp(mode, "ordered") == 0 && argc == 6)
    {
        Receiver r = {.connection = connection, .wanted = atoll(argv[5])};
        jsSubOptions sub;
        jsSubOptions_Init(&sub);
        sub.Stream = argv[3];
        sub.Ordered = true;
        check(natsConnection_JetStream(&js, connection, NULL), "JetStream");
        int64_t start = nats_NowInNanoSeconds();
        check(js_Subscribe(&subscription, js, argv[4], receive, &r, NULL, &sub, &code), "subscribe");
        check(natsSubscription_SetPendingLimits(subscription, -1, -1), "limits");
        wait_for(&r, start);
    }
    else if (strcmp(mode, "fetch") == 0 && argc == 7)
    {
        int64_t wanted = atoll(argv[5]), received = 0;
        int batch = atoi(argv[6]);
        jsSubOptions sub;
        jsSubOptions_Init(&sub);
        sub.Stream = argv[3];
        sub.Config.AckPolicy = js_AckNone;
        sub.Config.MemoryStorage = true;
        check(natsConnection_JetStream(&js, connection, NULL), "JetStream");
        int64_t start = nats_NowInNanoSeconds();
        check(js_PullSubscribe(&subscription, js, argv[4], NULL, NULL, &sub, &code), "subscribe");
        while (received < wanted)
        {
            natsMsgList list;
            int ask = wanted - received < batch ? (int)(wanted - received) : batch;
            check(natsSubscription_Fetch(&list, subscription, ask, 10000, &code), "fetch");
            received += list.Count;
            natsMsgList_Destroy(&list);
        }
        report(start, received);
    }
    else if (strcmp(mode, "sub") == 0 && argc == 6)
    {
        Receiver r = {.connection = connection, .wanted = atoll(argv[4]), .credit = atoll(argv[5])};
        check(natsConnection_Subscribe(&subscription, connection, argv[3], receive, &r), "subscribe");
        check(natsSubscription_SetPendingLimits(subscription, -1, -1), "limits");
        check(natsConnection_Flush(connection), "flush");
        int64_t start = nats_NowInNanoSeconds();
        check(natsConnection_PublishString(connection, "bench.go", argv[4]), "go");
        wait_for(&r, start);
    }
    else if (strcmp(mode, "pub") == 0 && argc == 6)
    {
        int64_t count = atoll(argv[4]);
        int size = atoi(argv[5]);
        char *payload = malloc(size);
        char **subjects = make_subjects(argv[3]);
        memset(payload, 'x', size);
        int64_t start = nats_NowInNanoSeconds();
        for (int64_t i = 0; i < count; i++)
            check(natsConnection_Publish(connection, subjects[i % SUBJECTS], payload, size), "publish");
        check(natsConnection_FlushTimeout(connection, TIMEOUT), "flush");
        report(start, count);
    }
    else if (strcmp(mode, "jspub") == 0 && argc == 8)
    {
        int64_t count = atoll(argv[4]);
        int size = atoi(argv[5]), ids = atoi(argv[7]);
        char *payload = malloc(size);
        char **subjects = make_subjects(argv[3]);
        char id[48];
        jsOptions js_options;
        jsPubOptions publish, complete;
        memset(payload, 'x', size);
        jsOptions_Init(&js_options);
        jsPubOptions_Init(&publish);
        jsPubOptions_Init(&complete);
        js_options.PublishAsync.MaxPending = atoll(argv[6]);
        js_options.PublishAsync.StallWait = TIMEOUT;
        complete.MaxWait = TIMEOUT;
        publish.MsgId = id;
        check(natsConnection_JetStream(&js, connection, &js_options), "JetStream");
        int64_t start = nats_NowInNanoSeconds();
        for (int64_t i = 0; i < count; i++)
        {
            if (ids)
                snprintf(id, sizeof id, "3f81c09a-0-0-%lld", (long long)i);
            check(js_PublishAsync(js, subjects[i % SUBJECTS], payload, size, ids ? &publish : NULL), "publish");
        }
        check(js_PublishAsyncComplete(js, &complete), "complete");
        report(start, count);
        natsMsgList failed = {0};
        if (js_PublishAsyncGetPendingList(&failed, js) == NATS_OK && failed.Count > 0)
        {
            fprintf(stderr, "%d messages were not acknowledged\n", failed.Count);
            return 1;
        }
    }
    else
        return 2;
    // The process ends here, and everything with it: freeing first would only cost the next contender time.
    fflush(stdout);
    _Exit(0);
}
