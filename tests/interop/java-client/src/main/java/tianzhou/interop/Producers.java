package tianzhou.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Producers by name, and everything they can send. */
final class Producers {
    private static final int WAIT_SECONDS = 20;
    private static final int LOAD_THREADS = 64;
    private static final int SEND_MS = 10_000; // the machine may be busy

    private final ClientProbe probe;
    private final Map<String, DefaultMQProducer> running = new TreeMap<>();

    Producers(ClientProbe probe) {
        this.probe = probe;
    }

    /** Options: group, trace, compressOver, maxSize, transaction, namespace. */
    Object start(Command command) throws Exception {
        String group = command.get("group", command.name);
        DefaultMQProducer producer;
        if (command.has("transaction")) {
            TransactionMQProducer made = new TransactionMQProducer(group);
            made.setTransactionListener(new Decisions(command.name));
            producer = made;
        } else {
            producer = new DefaultMQProducer(group, null, command.has("trace"), null);
        }
        producer.setNamesrvAddr(probe.nameserver);
        producer.setInstanceName(command.name);
        producer.setNamespace(command.get("namespace"));
        producer.setSendMsgTimeout(SEND_MS);
        producer.setCompressMsgBodyOverHowmuch(command.number("compressOver", 4096));
        producer.setMaxMessageSize(command.number("maxSize", producer.getMaxMessageSize()));
        producer.start();
        running.put(command.name, producer);
        return Json.map("started", command.name);
    }

    boolean stop(String name) {
        DefaultMQProducer producer = running.remove(name);
        if (producer != null) {
            producer.shutdown();
        }
        return producer != null;
    }

    void stopAll() {
        new ArrayList<>(running.keySet()).forEach(this::stop);
    }

    DefaultMQProducer get(String name) {
        return running.get(name);
    }

    /** The user's decisions: the first from property `local`, those of checks from `check`, with a
     * comma between them. */
    private final class Decisions implements TransactionListener {
        private final String producer;
        private final Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();

        Decisions(String producer) {
            this.producer = producer;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.valueOf(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String[] states = message.getUserProperty("check").split(",");
            String id = message.getTransactionId();
            int n = checks.computeIfAbsent(id, key -> new AtomicInteger()).getAndIncrement();
            String state = states[Math.min(n, states.length - 1)];
            probe.say(Json.map("event", "check", "client", producer, "state", state,
                "message", ClientProbe.describe(message)));
            return LocalTransactionState.valueOf(state);
        }
    }

    private static Message message(Command command, String body) throws Exception {
        Message message = new Message(command.get("topic"), command.get("tags", ""),
            command.get("keys", ""), body.getBytes(StandardCharsets.UTF_8));
        command.below("property.").forEach(message::putUserProperty);
        if (command.has("light")) {
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", command.get("light"));
        }
        if (command.has("level")) {
            message.setDelayTimeLevel(command.number("level", 0));
        }
        for (String setter : new String[] {"setDelayTimeMs", "setDelayTimeSec", "setDeliverTimeMs"}) {
            if (command.has(setter)) {
                Method method = Message.class.getMethod(setter, long.class);
                method.invoke(message, Long.parseLong(command.get(setter)));
            }
        }
        return message;
    }

    private static Message message(Command command) throws Exception {
        return message(command, command.get("body", "x".repeat(command.number("size", 0))));
    }

    private static Object describe(SendResult sent) throws Exception {
        Map<String, Object> told = Json.map("status", sent.getSendStatus().name(), "msgId", sent.getMsgId(),
            "offsetMsgId", sent.getOffsetMsgId(), "queueId", sent.getMessageQueue().getQueueId(),
            "queueOffset", sent.getQueueOffset(), "transactionId", sent.getTransactionId());
        try {
            told.put("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(sent));
        } catch (NoSuchMethodException error) {
            told.put("recallHandle", null); // an older client
        }
        if (sent instanceof TransactionSendResult) {
            told.put("local", ((TransactionSendResult) sent).getLocalTransactionState().name());
        }
        return told;
    }

    Object send(Command command) throws Exception {
        DefaultMQProducer producer = running.get(command.name);
        switch (command.get("how", "sync")) {
            case "sync":
                return describe(producer.send(message(command)));
            case "async":
                return describe(sendAsync(producer, message(command)));
            case "oneway":
                producer.sendOneway(message(command));
                return Json.map("status", "SENT");
            case "batch":
                return describe(producer.send(batch(command)));
            case "hash":
                return describe(producer.send(message(command), (queues, message, argument) ->
                    queues.get(Math.floorMod(argument.hashCode(), queues.size())), command.get("hash")));
            case "transaction":
                return describe(((TransactionMQProducer) producer)
                    .sendMessageInTransaction(message(command), null));
            case "request":
                return Json.map("reply", request(producer, message(command)));
            default:
                throw new IllegalArgumentException(command.get("how"));
        }
    }

    private static List<Message> batch(Command command) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (String body : command.get("bodies").split(",")) {
            messages.add(message(command, body));
        }
        return messages;
    }

    private static SendResult sendAsync(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<SendResult> result = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                result.complete(sent);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        });
        return result.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    /** By a callback: without one, 5.3.3 gives up as soon as the request is sent. With one it first
     * calls back without a reply. */
    private static String request(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<String> result = new CompletableFuture<>();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                if (reply != null) {
                    result.complete(new String(reply.getBody(), StandardCharsets.UTF_8));
                }
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        }, SEND_MS);
        return result.get(WAIT_SECONDS, TimeUnit.SECONDS);
    }

    /** Send at a fixed rate with blocking sends; options: topic, rate, seconds, timeoutMs. Says `begun`
     * as an event, and returns body, success and milliseconds of each send. */
    Object load(Command command) throws Exception {
        DefaultMQProducer producer = running.get(command.name);
        producer.setSendMsgTimeout(command.number("timeoutMs", 3000));
        int rate = command.number("rate", 100);
        int count = rate * command.number("seconds", 1);
        List<Object> results = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        probe.say(Json.map("event", "begun", "client", command.name, "message", count));
        long begun = System.nanoTime();
        for (int rank = 0; rank < LOAD_THREADS; rank++) {
            int first = rank;
            threads.add(new Thread(() -> {
                for (int n = first; n < count; n += LOAD_THREADS) {
                    results.add(timed(producer, command.get("topic"), "j" + n,
                        begun + n * 1_000_000_000L / rate));
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        return Json.map("sends", results);
    }

    private static List<Object> timed(DefaultMQProducer producer, String topic, String body, long at) {
        boolean isSent;
        long start = 0;
        try {
            TimeUnit.NANOSECONDS.sleep(at - System.nanoTime());
            start = System.nanoTime();
            SendResult sent = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
            isSent = sent.getSendStatus() == SendStatus.SEND_OK;
        } catch (Exception error) {
            isSent = false;
        }
        return Arrays.asList(body, isSent, (System.nanoTime() - start) / 1_000_000);
    }

    /** Take back a timed message; options: topic, handle. */
    Object recall(Command command) throws Exception {
        DefaultMQProducer producer = running.get(command.name);
        Method method;
        try {
            method = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        } catch (NoSuchMethodException error) {
            return Json.map("notOffered", true);
        }
        try {
            return Json.map("recalled", method.invoke(producer, command.get("topic"), command.get("handle")));
        } catch (InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }
}
