package tianzhou.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.zip.CRC32;

// With stars: MessageExtBrokerInner moved from the second package to the first in 5.0.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a directory with RocketMQ's own store and does what standard input says, a line each:
 *
 * <pre>
 *   dump                              every message of every queue
 *   find TOPIC KEY                    the messages with this key
 *   put TOPIC QUEUE BODY PROPERTIES   store a message; its properties are NAME=VALUE, one per field
 *   halt                              end at once, without an orderly shutdown
 * </pre>
 *
 * Fields are separated by tabs. The end of the input is an orderly shutdown. Every answer is one
 * line of JSON on standard output; the first is {"opened": ...} or {"refused": ...}.
 */
public final class StoreProbe {
    private static final long CATCH_UP_SECONDS = 30;
    private static final int READ_COUNT = 32;
    private static final int FIND_COUNT = 64;

    private final PrintStream out;
    private final DefaultMessageStore store;

    private StoreProbe(PrintStream out, DefaultMessageStore store) {
        this.out = out;
        this.store = store;
    }

    /** Arguments: directory, bytes of a log file, bytes of a queue file, slots and entries of an index
     * file; then any of `record-crc`. */
    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err); // for loggers without a configuration
        DefaultMessageStore store = newStore(config(args));
        try {
            if (!store.load()) {
                throw new IllegalStateException("load() returned false");
            }
            store.start();
        } catch (Exception error) {
            out.println(json("refused", String.valueOf(error.getMessage())));
            out.flush();
            Runtime.getRuntime().halt(3); // its threads are no daemons
        }
        StoreProbe probe = new StoreProbe(out, store);
        probe.catchUp();
        out.println(json("opened", store.getMaxPhyOffset()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            probe.obey(line.split("\t", -1));
        }
        store.shutdown();
        out.println(json("closed", true));
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static MessageStoreConfig config(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        config.setHaListenPort(0);
        config.setCleanFileForciblyEnable(false); // a full disk is no reason to delete a test
        for (int i = 5; i < args.length; i++) {
            if (args[i].equals("record-crc")) { // since 5.2
                MessageStoreConfig.class.getMethod("setEnabledAppendPropCRC", boolean.class).invoke(config, true);
                MessageStoreConfig.class.getMethod("setForceVerifyPropCRC", boolean.class).invoke(config, true);
            } else {
                throw new IllegalArgumentException(args[i]);
            }
        }
        return config;
    }

    /** The constructor has one argument more since 5.0. */
    private static DefaultMessageStore newStore(MessageStoreConfig config) throws Exception {
        BrokerStatsManager stats = new BrokerStatsManager("probe", true);
        MessageArrivingListener nobody = (topic, queueId, offset, tagsCode, time, bits, properties) -> { };
        Object[] all = {config, stats, nobody, new BrokerConfig(), new ConcurrentHashMap<>()};
        DefaultMessageStore store = null;
        for (Constructor<?> constructor : DefaultMessageStore.class.getConstructors()) {
            int count = constructor.getParameterCount();
            if (count == 4 || count == 5) {
                store = (DefaultMessageStore) constructor.newInstance(Arrays.copyOf(all, count));
            }
        }
        keepOffTheNetwork(store);
        keepDelayedMessages(store);
        return store;
    }

    /** Replication listens on every address, whether it is wanted or not; a test must not. */
    private static void keepOffTheNetwork(DefaultMessageStore store) throws Exception {
        Field replication = field(DefaultMessageStore.class, "haService");
        if (replication.getType().isInterface()) { // since 5.0
            replication.set(store, Proxy.newProxyInstance(StoreProbe.class.getClassLoader(),
                new Class<?>[] {replication.getType()}, (proxy, method, args) -> nothing(method.getReturnType())));
        } else {
            Object acceptor = field(replication.getType(), "acceptSocketService").get(replication.get(store));
            field(acceptor.getClass(), "socketAddressListen").set(acceptor, loopback(0));
        }
    }

    /** 4.x delivers what is due from within the store, 5.x from the broker. */
    private static void keepDelayedMessages(DefaultMessageStore store) throws Exception {
        for (Field delays : DefaultMessageStore.class.getDeclaredFields()) {
            if (delays.getName().equals("scheduleMessageService")) {
                delays.setAccessible(true);
                Object service = delays.get(store);
                ((AtomicBoolean) field(service.getClass(), "started").get(service)).set(true);
            }
        }
    }

    private static Object nothing(Class<?> type) {
        return type == boolean.class ? (Object) false : type == int.class ? (Object) 0 : type == long.class ? 0L : null;
    }

    private static Field field(Class<?> type, String name) throws Exception {
        Field found = type.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }

    private static InetSocketAddress loopback(int port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    private void catchUp() throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(CATCH_UP_SECONDS);
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(store.dispatchBehindBytes() + " bytes are not dispatched");
            }
            Thread.sleep(1);
        }
    }

    private void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "dump":
                dump();
                break;
            case "find":
                find(words[1], words[2]);
                break;
            case "put":
                put(words);
                break;
            case "halt":
                catchUp();
                out.flush();
                Runtime.getRuntime().halt(9);
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void dump() throws Exception {
        Map<String, ? extends Map<Integer, ?>> queues = store.getConsumeQueueTable();
        for (String topic : queues.keySet()) {
            for (int queueId : queues.get(topic).keySet()) {
                dump(topic, queueId);
            }
        }
        out.println(json("dumped", true));
    }

    private void dump(String topic, int queueId) throws Exception {
        long at = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        out.println(json("topic", topic, "queueId", queueId, "min", at, "max", end));
        while (at < end) {
            GetMessageResult found = store.getMessage("probe", topic, queueId, at, READ_COUNT, null);
            for (ByteBuffer record : found.getMessageBufferList()) {
                out.println(described(record));
            }
            found.release();
            if (found.getNextBeginOffset() <= at) {
                throw new IllegalStateException(topic + " " + queueId + " at " + at + ": " + found.getStatus());
            }
            at = found.getNextBeginOffset();
        }
    }

    private void find(String topic, String key) {
        QueryMessageResult found = store.queryMessage(topic, key, FIND_COUNT, 0, Long.MAX_VALUE);
        for (ByteBuffer record : found.getMessageBufferList()) {
            out.println(described(record));
        }
        found.release();
        out.println(json("found", found.getMessageBufferList().size()));
    }

    private void put(String[] words) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(words[1]);
        message.setQueueId(Integer.parseInt(words[2]));
        message.setBody(words[3].getBytes(StandardCharsets.UTF_8));
        for (int i = 4; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            MessageAccessor.putProperty(message, pair[0], pair[1]);
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(loopback(50123));
        message.setStoreHost(loopback(10911));
        PutMessageResult answer = store.putMessage(message);
        if (!answer.isOk()) {
            throw new IllegalStateException("put: " + answer.getPutMessageStatus());
        }
        AppendMessageResult placed = answer.getAppendMessageResult();
        out.println(json("msgId", placed.getMsgId(), "queueOffset", placed.getLogicsOffset(),
            "physicalOffset", placed.getWroteOffset(), "size", placed.getWroteBytes(),
            "storeTimestamp", placed.getStoreTimestamp()));
        catchUp();
    }

    private static String described(ByteBuffer record) {
        ByteBuffer bytes = record.duplicate();
        byte[] raw = new byte[bytes.remaining()];
        bytes.get(raw);
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(raw), true, true);
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        return json("topic", message.getTopic(), "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(), "physicalOffset", message.getCommitLogOffset(),
            "msgId", message.getMsgId(), "flag", message.getFlag(),
            // As it is stored: decoding takes the bits for compression away since 5.0.
            "sysFlag", ByteBuffer.wrap(raw).getInt(MessageDecoder.SYSFLAG_POSITION),
            "bornTimestamp", message.getBornTimestamp(), "bornHost", host(message.getBornHost()),
            "storeTimestamp", message.getStoreTimestamp(), "storeHost", host(message.getStoreHost()),
            "reconsumeTimes", message.getReconsumeTimes(),
            "preparedOffset", message.getPreparedTransactionOffset(),
            "bodySize", body.length, "bodyCrc", crc(body), "recordSize", raw.length, "recordCrc", crc(raw),
            "tags", message.getTags(), "keys", message.getKeys(), "properties", message.getProperties());
    }

    private static String host(SocketAddress address) {
        InetSocketAddress internet = (InetSocketAddress) address;
        return internet.getAddress().getHostAddress() + " " + internet.getPort();
    }

    private static long crc(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return crc.getValue();
    }

    // JSON

    private static String json(Object... namesAndValues) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            fields.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return json(fields);
    }

    private static String json(Map<?, ?> fields) {
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<?, ?> entry : fields.entrySet()) {
            text.append(text.length() > 1 ? ", " : "").append(quoted((String) entry.getKey())).append(": ");
            Object value = entry.getValue();
            if (value instanceof Map) {
                text.append(json(new TreeMap<>((Map<?, ?>) value)));
            } else {
                text.append(value instanceof String ? quoted((String) value) : String.valueOf(value));
            }
        }
        return text.append("}").toString();
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c < ' ' || c == '"' || c == '\\' || c > '~') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append("\"").toString();
    }
}
