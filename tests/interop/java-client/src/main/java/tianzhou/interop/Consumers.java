package tianzhou.interop;

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers by name; what a push consumer gets are events. */
final class Consumers {
    private static final int LITE_BATCH = 32;

    private final ClientProbe probe;
    private final Map<String, DefaultMQPushConsumer> pushing = new TreeMap<>();
    private final Map<String, DefaultLitePullConsumer> pulling = new TreeMap<>();

    Consumers(ClientProbe probe) {
        this.probe = probe;
    }

    /**
     * Options: group, topic, tags or sql; orderly, broadcasting, trace, namespace, ip; fail (how often each message
     * is refused before it is taken), attempts (how often it comes back at most), reply (the name of
     * the producer that answers requests).
     */
    Object start(Command command) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.get("group"), null,
            new AllocateMessageQueueAveragely(), command.has("trace"), null);
        consumer.setNamesrvAddr(probe.nameserver);
        consumer.setInstanceName(command.name);
        consumer.setNamespace(command.get("namespace"));
        if (command.has("ip")) {
            consumer.setClientIP(command.get("ip"));
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setMaxReconsumeTimes(command.number("attempts", -1));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        if (command.has("broadcasting")) {
            broadcast(consumer);
        }
        if (command.has("sql")) {
            consumer.subscribe(command.get("topic"), MessageSelector.bySql(command.get("sql")));
        } else {
            consumer.subscribe(command.get("topic"), command.get("tags", "*"));
        }
        listen(consumer, command);
        consumer.start();
        pushing.put(command.name, consumer);
        return Json.map("started", command.name);
    }

    /** The enumeration moved to another package in 5.0. */
    private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
    }

    private void listen(DefaultMQPushConsumer consumer, Command command) {
        if (command.has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(command, messages) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                take(command, messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
    }

    private boolean take(Command command, List<MessageExt> messages) {
        boolean taken = true;
        for (MessageExt message : messages) {
            taken &= message.getReconsumeTimes() >= command.number("fail", 0);
            probe.say(Json.map("event", "message", "client", command.name,
                "message", ClientProbe.describe(message)));
            if (command.has("reply") && message.getProperty("REPLY_TO_CLIENT") != null) {
                reply(probe.producers.get(command.get("reply")), message);
            }
        }
        return taken;
    }

    private void reply(DefaultMQProducer producer, MessageExt request) {
        String answer = "re: " + new String(request.getBody(), StandardCharsets.UTF_8);
        try {
            producer.send(MessageUtil.createReplyMessage(request, answer.getBytes(StandardCharsets.UTF_8)));
        } catch (Exception error) {
            probe.say(Json.map("event", "error", "error", error.toString()));
        }
    }

    /** A consumer that is asked: options group, topic, tags. */
    Object startLite(Command command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.get("group"));
        consumer.setNamesrvAddr(probe.nameserver);
        consumer.setInstanceName(command.name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(LITE_BATCH);
        consumer.subscribe(command.get("topic"), command.get("tags", "*"));
        consumer.start();
        pulling.put(command.name, consumer);
        return Json.map("started", command.name);
    }

    /** One pull of a queue that no NameServer knows. Options: group, topic (whose brokers are known),
     * queue (the name of a light queue), broker, offset. */
    @SuppressWarnings("deprecation")
    Object pull(Command command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(command.get("group"));
        consumer.setNamesrvAddr(probe.nameserver);
        consumer.setInstanceName(command.name);
        consumer.start();
        try {
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
                .updateTopicRouteInfoFromNameServer(command.get("topic"));
            MessageQueue queue = new MessageQueue(command.get("queue"), command.get("broker"), 0);
            PullResult found = consumer.pull(queue, "*", command.number("offset", 0), LITE_BATCH);
            List<Object> messages = new ArrayList<>();
            if (found.getMsgFoundList() != null) {
                found.getMsgFoundList().forEach(message -> messages.add(ClientProbe.describe(message)));
            }
            consumer.updateConsumeOffset(queue, found.getNextBeginOffset());
            consumer.getOffsetStore().persist(queue);
            return Json.map("status", found.getPullStatus().name(), "messages", messages,
                "next", found.getNextBeginOffset(), "min", consumer.minOffset(queue),
                "max", consumer.maxOffset(queue));
        } finally {
            consumer.shutdown();
        }
    }

    /** Option: waitMs. */
    Object poll(Command command) {
        List<Object> polled = new ArrayList<>();
        for (MessageExt message : pulling.get(command.name).poll(command.number("waitMs", 1000))) {
            polled.add(ClientProbe.describe(message));
        }
        return Json.map("polled", polled);
    }

    @SuppressWarnings("deprecation") // what replaced it is not in 4.9
    Object commit(Command command) {
        pulling.get(command.name).commitSync();
        return Json.map("committed", true);
    }

    boolean stop(String name) {
        DefaultMQPushConsumer push = pushing.remove(name);
        if (push != null) {
            push.shutdown();
        }
        DefaultLitePullConsumer pull = pulling.remove(name);
        if (pull != null) {
            pull.shutdown();
        }
        return push != null || pull != null;
    }

    void stopAll() {
        new ArrayList<>(pushing.keySet()).forEach(this::stop);
        new ArrayList<>(pulling.keySet()).forEach(this::stop);
    }
}
